"""A node's lifecycle: founding, admission, membership, start and stop."""
