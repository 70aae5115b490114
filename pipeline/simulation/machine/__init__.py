"""The state of the simulated machine, and the rules of its driver."""
