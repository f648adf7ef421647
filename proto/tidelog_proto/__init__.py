"""The native protocol: envelopes, frames, the record batch, its limits and its errors.

Everything that two processes must agree on lives here and nothing else does. No sockets, no files,
no clocks: the modules turn bytes into values and back.
"""
