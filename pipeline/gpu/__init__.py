"""`python -m pipeline.gpu`: the state of GPUs, MIG by hand, cleaning up, and the self-test."""
