"""Text training: models of transformers, texts, and their tokens."""
