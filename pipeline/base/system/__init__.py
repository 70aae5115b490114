"""The operating system layer: programs, files, locks, signals, processes, secrets in texts."""
