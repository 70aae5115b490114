"""The acceptance of MIG: checks on a real GPU what the project promises about MIG, and what its simulation says."""
