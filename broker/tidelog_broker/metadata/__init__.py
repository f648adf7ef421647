"""Replicated state in logs: topics, nodes and identities, the changes to them, and the freshness of a node's copy."""
