"""The WebSocket API: subprotocols `tidelog.v1.json` and `tidelog.v1.proto`.

`route.py` has the handshake, `connection.py` the I/O with the socket. The messages and the state machine are in
`protocol/`, the delivery of subscriptions is in `subscriptions/`.
"""
