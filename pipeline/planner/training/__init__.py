"""Schedules of training jobs: their speeds together, and which run when."""
