"""What `framework.py` asks frameworks and servers: what they see, and a product whose answer is known."""
