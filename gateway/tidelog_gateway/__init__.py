"""The gateway: HTTP and WebSocket for the native protocol.

A stateless FastAPI application on the asynchronous client, of which any number may run. It adds JSON requests and
answers, problem documents for all errors, and limits on everything that clients send and receive.
"""
