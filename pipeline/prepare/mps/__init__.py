"""MPS: its daemon, its clients, its static partitions, and the shares that compute wrongly."""
