"""MPS: daemon, clients, static partitions, and the active thread percentages that lead to wrong results."""
