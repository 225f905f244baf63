"""Append to the paged KV cache, and attend over it: the public operations and what runs them."""
