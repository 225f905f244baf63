"""What kernels for Hopper GPUs share, whatever they compute."""
