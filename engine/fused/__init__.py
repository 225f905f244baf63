"""The decode step as few fused kernels."""
