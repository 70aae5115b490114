"""Arrival of requests at a model, and their answers."""
