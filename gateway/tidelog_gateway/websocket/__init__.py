"""The WebSocket surface: subprotocol `tidelog.v1.json`.

`messages.py` says what a client may send, `ws_protocol.py` decides what follows from it (no I/O), `connection.py`
and `delivery.py` are the thin shells that talk to the socket and the log, `route.py` does the handshake.
"""
