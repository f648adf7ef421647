"""What a node keeps beside its logs: the data directory's identity, journals, fences."""
