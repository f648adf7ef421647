"""Subscriptions to a topic, for WebSockets and event streams: start positions, delivery, lag, group membership."""
