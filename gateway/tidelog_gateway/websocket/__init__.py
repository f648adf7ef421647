"""The WebSocket API: subprotocols `tidelog.v1.json` and `tidelog.v1.proto`.

`messages.py` has the types of client messages, `ws_protocol.py` the protocol's state machine (no I/O), `connection.py`
and `delivery.py` the I/O with the socket and the log, `route.py` the handshake.
"""
