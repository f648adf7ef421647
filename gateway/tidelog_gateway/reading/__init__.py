"""Reads over HTTP: the routes of a partition, a topic and a key, and responses encoded from columns."""
