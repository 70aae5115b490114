"""Training jobs: how fast they are together, and which run when."""
