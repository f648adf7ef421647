"""Records and JSON as text."""
