"""What programs that know nothing of us say of themselves: through MLflow, in TensorBoard files, in their output."""
