"""The forms in which records come in a request: JSON, lines, CSV, Arrow, protobuf, CloudEvents and raw bytes."""
