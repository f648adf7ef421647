"""Publishing of records: admission, the route, idempotency, and streams of lines."""
