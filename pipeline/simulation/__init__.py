"""A simulated NVIDIA driver: a library that pynvml calls, and programs with the output formats of the real programs."""
