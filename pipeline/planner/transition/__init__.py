"""Transitions from one deployment to another: planning, proof and replay."""
