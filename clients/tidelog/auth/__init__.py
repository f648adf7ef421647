"""Authentication of the client on a connection."""
