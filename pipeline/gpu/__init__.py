"""The GPU as the orchestrator sees it: inventory, lease, and one module a sharing mode."""
