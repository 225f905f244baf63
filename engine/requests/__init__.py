"""A request: what it asks for, whether it may, and how its tokens reach its sender."""
