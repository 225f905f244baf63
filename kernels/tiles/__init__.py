"""How each kernel is cut into tiles."""
