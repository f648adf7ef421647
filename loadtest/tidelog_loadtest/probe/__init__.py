"""The limit probe: a minimal implementation of a node's work, as the upper limit."""
