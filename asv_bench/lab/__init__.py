"""The engine on a GPU that is only pretended, and what its kernels compile to."""
