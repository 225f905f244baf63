"""The linear maps of a decode step, with the norms, the residual stream and the head."""
