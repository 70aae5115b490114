"""The arrival of requests at a model, and the model's answers."""
