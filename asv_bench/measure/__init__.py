"""From a life to a pair: what runs lives, where, in which order, and what they give."""
