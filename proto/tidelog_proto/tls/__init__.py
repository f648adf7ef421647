"""TLS of a server: handshakes, the encrypted stream, and certificate files that are reloaded when they change."""
