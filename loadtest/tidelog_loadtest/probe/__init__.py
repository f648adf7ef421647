"""The limit probe: the barest code that does a node's part."""
