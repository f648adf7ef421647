"""Answers that hold records in any media type: negotiation, encodings of values, bodies made of columns."""
