"""Incarnations of a node: `boot counter << 24 | nonce`, a u64 that increases with every start.

The counter is durably incremented at every start, so of two incarnations of one node the later compares higher.
Ballots, epoch descriptors, fences and gossip contain incarnations. The 24 random bits distinguish processes that were
started on copies of one data directory: the same counter with another nonce is another process.
"""

from __future__ import annotations

from typing import Final

NONCE_BITS: Final = 24
BOOT_COUNTER_MAX: Final = (1 << (64 - NONCE_BITS)) - 1


def make_incarnation(boot_counter: int, nonce: int) -> int:
    """Return the incarnation of a start; `boot_counter` is 1 to 2^40 - 1, `nonce` below 2^24."""
    assert 1 <= boot_counter <= BOOT_COUNTER_MAX
    assert 0 <= nonce < 1 << NONCE_BITS
    return boot_counter << NONCE_BITS | nonce


def boot_counter(incarnation: int) -> int:
    """Return the boot counter of an incarnation; 0 for incarnation 0."""
    return incarnation >> NONCE_BITS


def is_foreign(own: int, seen: int) -> bool:
    """Return whether `seen`, received under this node's own id, is another process rather than an earlier start.

    Two processes then share an identity, because a disk was copied or restored from an old image; this process halts.
    """
    return seen != own and boot_counter(seen) >= boot_counter(own)
