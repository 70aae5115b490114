"""One file a command of `python -m pipeline.planner`; `__main__` names them."""
