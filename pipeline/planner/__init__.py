"""Planning of jobs on shared GPUs, from measured profiles to deployments, and from one deployment to the next.

It reads results and writes plans. Only `replay` changes a machine, a simulated one.
"""
