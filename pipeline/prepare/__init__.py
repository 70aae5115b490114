"""Preparation of a group: its device, its sharing mode and the environments of its jobs."""
