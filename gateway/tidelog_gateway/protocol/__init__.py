"""The WebSocket protocol without I/O: messages, codecs, resume tokens, and the state machine with its credit."""
