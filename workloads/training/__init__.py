"""Shared code of training programs: steps, epochs, and the check of results."""
