"""The state of a study that several workers or tasks measure, shard by shard, from what the store has of it."""
