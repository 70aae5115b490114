"""Samplers of the GPU and the host: one module per listener, with its table of fields."""
