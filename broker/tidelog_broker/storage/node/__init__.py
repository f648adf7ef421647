"""A node's files besides its logs: the identity of the data directory, journals, fences."""
