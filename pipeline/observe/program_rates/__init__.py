"""Rates that scripts log by themselves: through MLflow, in TensorBoard files, and in their output."""
