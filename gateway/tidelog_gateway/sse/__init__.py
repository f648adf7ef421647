"""A topic as server-sent events over HTTP: `GET /v1/topics/{topic}/stream`.

A stream is a subscription like those of a WebSocket, with unlimited credit: `events.py` encodes its messages as events,
`event_sender.py` sends them, `event_stream.py` is the response, and `route.py` opens the subscription.
"""
