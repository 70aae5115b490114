"""Text: models of transformers, passages and their tokens."""
