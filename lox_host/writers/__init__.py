"""Back ends: what writes the rows of runs to a place."""
