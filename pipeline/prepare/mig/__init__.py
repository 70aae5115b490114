"""MIG: profiles, legal layouts, and the creation and destruction of instances."""
