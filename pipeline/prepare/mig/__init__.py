"""MIG: profiles, legal layouts, and making and undoing instances."""
