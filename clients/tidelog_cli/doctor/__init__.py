"""`tidelog doctor`: diagnosis of a machine, its configuration and its cluster."""
