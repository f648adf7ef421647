"""The files of a node: the only code that touches data files. Blocking; called on I/O worker threads."""
