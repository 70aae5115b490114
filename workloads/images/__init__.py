"""Image data and models for training programs."""
