"""Placement of partitions: planned moves, and an owner's own reasons to move a partition."""
