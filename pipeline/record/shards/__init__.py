"""The state of a study whose shards are run by several workers or Slurm tasks, as read from the store."""
