"""Serving plans: the fewest GPUs for given rates and latency objectives, proved, and by MIG-serving's algorithms."""
