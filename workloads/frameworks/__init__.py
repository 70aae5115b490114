"""The probes of `framework.py`: the devices of frameworks and servers, and a matrix product with a known result."""
