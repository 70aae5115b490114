"""Training jobs: their speed when run together, and their schedule."""
