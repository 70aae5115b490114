"""Plans for jobs on shared GPUs: deployments from measured profiles, and transitions between deployments.

The planner reads results and writes plans. Only `replay` changes a machine, which is simulated.
"""
