"""HTTP/1.1 messages: heads, chunked bodies, and one request with its answer on a connection."""
