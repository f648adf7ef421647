"""Consumer groups: membership, assignment of partitions, and committed offsets."""
