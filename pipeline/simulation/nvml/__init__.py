"""The C functions of libnvidia-ml on the simulated machine."""
