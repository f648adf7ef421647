"""The node: one broker process, one event loop, its partitions and its data directory.

`core` holds the state machines without any I/O, `storage` is the only code that touches data files, and the other
packages connect them to sockets, timers, I/O workers and metrics.
"""
