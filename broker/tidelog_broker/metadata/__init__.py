"""Cluster metadata in replicated logs: topics, nodes and identities, and how a node keeps its copy current."""
