"""One GPU: reading it, holding it, its settings, and why it is refused."""
