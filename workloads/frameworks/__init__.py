"""The probes of `framework.py`: they list devices of frameworks and servers, and compute a known matrix product."""
