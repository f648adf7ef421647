"""The I/O around `core.replication`: executes the replicas' effects, and keeps their logs and journals."""
