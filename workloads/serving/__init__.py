"""How requests come to a model, and how they are answered."""
