"""What is put before the command of a job: one module a profiler, named by a YAML of `conf/profiler`."""
