"""Shared feeds: subscriptions of one caller to one topic share one read from the nodes and each encoded message.

`ring.py` decides which follower receives which entry (no I/O), `shared_feed.py` reads and encodes, `feeds.py` finds the
feed of a subscription.
"""
