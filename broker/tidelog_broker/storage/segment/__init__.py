"""One segment: its format, its writer, its indexes, its reader."""
