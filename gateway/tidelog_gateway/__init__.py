"""The gateway: HTTP and WebSocket for the native protocol.

A stateless FastAPI application that uses the asynchronous client; any number of gateways may serve one cluster. The
gateway adds JSON requests and answers, problem documents for all errors, and limits on everything that clients send and
receive.
"""
