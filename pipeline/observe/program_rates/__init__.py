"""Rates that scripts log: through MLflow, in TensorBoard files, and in their output."""
