"""Shared code of image and text data: batches, a data loader with our own order, folders that are created once."""
