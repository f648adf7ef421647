"""Consumer groups: membership, hand-over of partitions, commits, administration."""
