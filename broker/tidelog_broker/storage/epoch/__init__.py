"""One epoch's log: segments in a directory, and their recovery."""
