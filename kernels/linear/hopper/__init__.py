"""Linear maps and the head for Hopper GPUs, in Gluon."""
