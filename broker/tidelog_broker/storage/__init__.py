"""The files of a node: the only code that accesses data files. Blocking; called on I/O worker threads."""
