"""`tidelog cluster`: nodes, partitions and replicas, and the files that found a cluster."""
