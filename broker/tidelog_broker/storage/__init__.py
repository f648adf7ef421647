"""A node's data files: no other package accesses them. Calls may wait for the disk: most run on I/O worker threads."""
