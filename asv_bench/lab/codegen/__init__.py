"""The kernels that the engine launches, compiled for sm_90 without a GPU."""
