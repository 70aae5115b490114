"""What the microbenchmarks are made of: operations, kernels, and the loop that measures them."""
