"""A partition's log: a chain of epochs, with truncation, partial copies and repair."""
