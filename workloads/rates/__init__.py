"""The components of microbenchmarks: operations, kernels, and the loop that measures the operations."""
