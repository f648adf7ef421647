"""The gateway: HTTP and WebSocket in front of the native protocol.

A stateless FastAPI application on the asynchronous client; run as many as you like. What it adds to the log
is the surface: JSON in and out, problem documents for every error, limits in front of everything.
"""
