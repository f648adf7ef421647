"""`tidelog top`: live statistics of a cluster in a terminal."""
