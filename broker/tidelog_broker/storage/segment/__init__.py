"""One segment: its format, its writing, its index, its reading."""
