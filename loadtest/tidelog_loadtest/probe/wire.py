"""What the limit probe says on its socket: a fixed request header, a fixed reply header, payload behind either.

Nothing here is a protocol to keep: it is the least that lets two processes move the same bytes as the product
does. Rejected: the product's own frames, whose envelope is part of what is being measured.
"""

from __future__ import annotations

import struct
from typing import Final

REQUEST: Final = struct.Struct("<IIIIQ")
"""kind, payload bytes (READ: the most bytes wanted), payload CRC32C, zero, file position (READ only)."""

REPLY: Final = struct.Struct("<IIQ")
"""kind, payload bytes that follow (APPEND: none), file position of the payload."""

APPEND: Final = 1
"""Store the payload; the reply means stored (and synced, with flush=always)."""

READ: Final = 2
"""Send back stored bytes from a position on."""

ALIGNMENT_BYTES: Final = 64
"""Payloads begin at multiples of this in the file, as batches do in a segment."""


def aligned(length_bytes: int) -> int:
    """Return `length_bytes` rounded up to the alignment."""
    return -(-length_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
