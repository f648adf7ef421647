"""Consumer groups: where they stand, who their members are, and who reads what."""
