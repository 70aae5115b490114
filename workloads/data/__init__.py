"""Shared code of image and text data: batches, a data loader with a reproducible order, and cache folders."""
