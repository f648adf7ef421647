"""`tidelog top`: the figures of a cluster in a terminal, kept current."""
