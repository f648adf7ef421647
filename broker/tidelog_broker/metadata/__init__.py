"""State that is a log: topics, nodes and positions, who changes them, and how fresh a node's copy is."""
