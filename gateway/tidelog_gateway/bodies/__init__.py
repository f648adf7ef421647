"""Parsers of request bodies with records: JSON, NDJSON, CSV, Arrow, protobuf, CloudEvents and raw bytes."""
