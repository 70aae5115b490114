"""One study on several GPUs: workers, each of which is a `run.py` that runs one unit at a time on one GPU."""
