"""The simulated MPS control program and its daemon."""
