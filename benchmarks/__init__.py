"""The project measured against a bare loop."""
