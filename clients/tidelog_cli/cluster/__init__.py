"""`tidelog cluster`: nodes, what they hold, and the files that found a cluster."""
