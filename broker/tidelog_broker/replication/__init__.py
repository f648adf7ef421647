"""The shell around `core.replication`: it carries out what replicas want, and keeps their logs and journals."""
