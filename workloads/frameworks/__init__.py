"""The probes of `framework.py`: the devices of frameworks and servers, and a product whose answer is known."""
