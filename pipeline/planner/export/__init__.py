"""Exports of a plan: as an experiment, for mig-parted and for Kubernetes (device plugin, DRA, KAI)."""
