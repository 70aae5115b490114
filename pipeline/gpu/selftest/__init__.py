"""`python -m pipeline.gpu selftest`: are the counters of a GPU believable, and is it healthy."""
