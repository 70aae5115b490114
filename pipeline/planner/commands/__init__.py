"""The commands of `python -m pipeline.planner`, in modules by topic."""
