"""The common part of image and text data: batches, torch's loader in an order of ours, folders that are made once."""
