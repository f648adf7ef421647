"""Coordinating consumer groups: members come, live, leave and are told what to read."""
