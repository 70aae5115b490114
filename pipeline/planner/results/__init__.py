"""Profiles, advice and checks of plans from measured runs."""
