"""Preparation of a group: the device, how it is shared, the jobs' environments."""
