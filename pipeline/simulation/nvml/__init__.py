"""The C functions of libnvidia-ml over the simulated machine."""
