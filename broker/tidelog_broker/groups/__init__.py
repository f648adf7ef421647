"""Coordination of consumer groups: membership, sessions and assignments."""
