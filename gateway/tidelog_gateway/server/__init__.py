"""The server below the application: sockets, TLS, HTTP and WebSocket protocols of uvicorn, and a graceful stop."""
