"""How often the commands err, on figures whose truth is known."""
