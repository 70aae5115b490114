"""One study on several GPUs: each worker is a `run.py` process that runs one shard at a time on one GPU."""
