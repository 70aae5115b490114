"""A simulated NVIDIA driver below the real code: a library beneath pynvml, and programs with real output formats."""
