"""Plans which jobs share which GPU, and how: from measured profiles to deployments, and from one to the next.

Reads results and writes plans. Only `replay` touches a GPU.
"""
