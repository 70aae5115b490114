"""Records, protocols, errors and helpers that all stages use; independent of every stage."""
