"""Planning of jobs on shared GPUs, from measured profiles to deployments, and from one deployment to the next.

Reads results and writes plans. Only `replay` touches a GPU.
"""
