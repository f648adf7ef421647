"""`tidelog doctor`: what is wrong, or likely to go wrong, with a machine, its configuration and its cluster."""
