"""Every kernel compiled for sm_90 without a GPU, and held to rules."""
