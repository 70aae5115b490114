"""One study on several GPUs: workers, each of which is a `run.py` that runs one shard at a time on one GPU."""
