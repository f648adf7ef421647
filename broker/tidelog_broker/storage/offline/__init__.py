"""Offline inspection, dump and repair of a stopped node's data files, for `tidelog log`."""
