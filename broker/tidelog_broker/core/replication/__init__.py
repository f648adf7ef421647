"""Replication of one partition: replica roles, takeover by consensus, and idempotent producers."""
