"""The limit probe's protocol: a fixed request header and a fixed reply header, each followed by the payload, if any.

The protocol has no compatibility requirements: it is the minimum that lets two processes move the same bytes as the
product. Rejected: the product's own frames, because the benchmarks also measure the cost of their envelopes.
"""

from __future__ import annotations

import struct
from typing import Final

REQUEST: Final = struct.Struct("<IIIIQ")
"""Request header: kind, payload bytes (READ: maximum to return), payload CRC32C, zero, file position (READ only)."""

REPLY: Final = struct.Struct("<IIQ")
"""Reply header: kind, payload bytes that follow (APPEND: none), file position of the payload."""

APPEND: Final = 1
"""Store the payload; the reply means stored (and synced, with flush=always)."""

READ: Final = 2
"""Return stored bytes from a position on."""

ALIGNMENT_BYTES: Final = 64
"""Alignment of payloads in the file, as of batches in a segment."""


def aligned(length_bytes: int) -> int:
    """Return `length_bytes` rounded up to the alignment."""
    return -(-length_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
