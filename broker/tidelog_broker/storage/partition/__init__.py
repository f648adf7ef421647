"""A partition's log: a chain of epochs, with truncation, filling and repair."""
