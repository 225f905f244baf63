"""Which commit of a range made a benchmark slower."""
