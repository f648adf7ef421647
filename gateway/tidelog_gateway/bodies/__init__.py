"""Bodies of requests, parsed within limits: JSON, NDJSON, CSV, Arrow, protobuf, CloudEvents and raw bytes."""
