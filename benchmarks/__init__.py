"""Benchmarks of the project; most compare it with a bare loop that does the same work."""
