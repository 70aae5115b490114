"""The commands of `python -m pipeline.planner`, one file each."""
