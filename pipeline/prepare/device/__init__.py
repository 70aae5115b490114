"""One GPU: its state, its lease, its settings, and the reasons to refuse it."""
