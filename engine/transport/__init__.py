"""What passes between host and device in a step, and the memory it passes through."""
