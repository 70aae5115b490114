"""Shared code of training programs: steps, epochs, and checks of results."""
