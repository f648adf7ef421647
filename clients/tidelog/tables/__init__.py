"""Topics as Arrow tables."""
