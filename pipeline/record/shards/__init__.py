"""The state of a study that several workers or tasks measure, shard by shard, as read from the store."""
