"""Serving plans: the fewest GPUs for given rates and latency objectives, by a proved method or MIG-serving's."""
