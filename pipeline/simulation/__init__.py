"""A simulated NVIDIA driver below the real code: a library under pynvml, and programs with real output formats."""
