"""From a job to a process that is ready, released with the others, and ended."""
