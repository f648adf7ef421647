"""Cluster membership: SWIM failure detection, its datagrams, and admission of data directories."""
