"""Samplers of the GPU and the host; one module a listener, each with its table of fields."""
