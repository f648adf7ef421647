"""The I/O shell around `core.replication`: carries out the replicas' effects, and keeps their logs and journals."""
