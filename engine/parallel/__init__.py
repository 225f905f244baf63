"""One engine on several devices: a rank for each, which computes its share of every layer."""
