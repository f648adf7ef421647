"""Consumer groups: membership, partition handover, commits and administration."""
