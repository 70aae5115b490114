"""What data of images and of text share: batches, torch's loader in an order of ours, folders that are made once."""
