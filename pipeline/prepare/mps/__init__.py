"""MPS: its daemon, its clients, its static partitions, and the active thread percentages that give wrong results."""
