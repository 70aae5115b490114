"""The C functions of libnvidia-ml for the simulated machine."""
