"""A topic as server-sent events over HTTP: `GET /v1/topics/{topic}/stream`.

It is a subscription like those of a WebSocket, with all the credit there is: `events.py` writes its messages as events,
`event_sender.py` sends them, `route.py` opens and ends it.
"""
