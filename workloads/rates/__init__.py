"""The parts of microbenchmarks: operations, kernels, and the loop that measures them."""
