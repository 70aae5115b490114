"""Schedules of training jobs: the speeds of jobs that run together, and the order of groups on GPUs."""
