"""Storage of a node's data files, which no other package accesses.

Calls may block on the disk, so most of them run on I/O worker threads.
"""
