"""A node's lives in numbers: `boot counter << 24 | nonce`, a u64 that only grows.

The counter is raised durably at every start, so of two lives of one node the later always compares higher; this is the
number in ballots, in descriptors of epochs, in fences and in gossip. The 24 random bits tell two processes apart that
were started by mistake on copies of one directory: the same counter with another nonce is another process.
"""

from __future__ import annotations

from typing import Final

NONCE_BITS: Final = 24
BOOT_COUNTER_MAX: Final = (1 << (64 - NONCE_BITS)) - 1


def make_incarnation(boot_counter: int, nonce: int) -> int:
    """Return the incarnation of the start with this number, 1 to 2^40 - 1; `nonce` is below 2^24."""
    assert 1 <= boot_counter <= BOOT_COUNTER_MAX
    assert 0 <= nonce < 1 << NONCE_BITS
    return boot_counter << NONCE_BITS | nonce


def boot_counter(incarnation: int) -> int:
    """Return which start of its node an incarnation is; 0 for no start at all."""
    return incarnation >> NONCE_BITS


def is_foreign(own: int, seen: int) -> bool:
    """Tell whether `seen`, met under this node's own id, is another process and not an earlier life of this one.

    Then two processes share an identity: one disk was copied, or restored from an old image. Whoever finds out halts.
    """
    return seen != own and boot_counter(seen) >= boot_counter(own)
