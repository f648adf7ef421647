"""The native protocol: envelopes, frames, record batches, limits and error codes, shared by all processes."""
