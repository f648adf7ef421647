"""`tidelog topic`: topics, their settings and partitions."""
