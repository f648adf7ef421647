"""TLS of a server: handshakes, the stream, and certificate files that are followed while it runs."""
