"""MPS: its daemon, its clients, and the shares that compute wrongly."""
