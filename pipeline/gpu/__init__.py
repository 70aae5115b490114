"""`python -m pipeline.gpu`: what GPUs hold and who uses them, instances by hand, cleaning up, and the self-test."""
