"""The machine that the pipeline runs on: programs, files, locks, signals, processes, secrets in texts."""
