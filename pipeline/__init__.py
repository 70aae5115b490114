"""The orchestrator: config -> plan -> prepare GPU -> launch group -> observe -> record -> clean."""
