"""A partition's log: its epochs in a chain, cut, filled and repaired as decided."""
