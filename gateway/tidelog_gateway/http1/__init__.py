"""HTTP/1.1 as bytes: heads, bodies in chunks, and one request with its answer on a connection."""
