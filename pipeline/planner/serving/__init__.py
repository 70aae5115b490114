"""Serving plans: the fewest GPUs for rates and latency objectives, by an exact method or MIG-serving's algorithms."""
