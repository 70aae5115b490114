"""What a group needs before its jobs start: the device, how it is shared, the jobs' environments."""
