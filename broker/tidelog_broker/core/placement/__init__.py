"""Placement of partition copies, plans of the next epoch, and the registry of nodes."""
