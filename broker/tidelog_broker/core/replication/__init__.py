"""Replication: one replica and its parts, takeovers, producers."""
