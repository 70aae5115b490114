"""Samplers of the GPU and the host: one module per listener, each with its table of fields."""
