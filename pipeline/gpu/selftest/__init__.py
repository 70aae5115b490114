"""`python -m pipeline.gpu selftest`: checks the counters and the health of a GPU."""
