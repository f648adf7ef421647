from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.membership.datagram_seal import SECRET_BYTES_MIN, Sealer
from tidelog_broker.core.membership.gossip_messages import DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX

SEALER = Sealer(b"s" * SECRET_BYTES_MIN)


def test_what_is_sealed_opens_up_to_the_longest() -> None:
    for payload in (b"", b"x", bytes(PAYLOAD_BYTES_MAX)):
        assert SEALER.open(SEALER.seal(payload)) == payload
    assert len(SEALER.seal(bytes(PAYLOAD_BYTES_MAX))) == DATAGRAM_BYTES_MAX


def test_another_secret_opens_nothing() -> None:
    assert Sealer(b"t" * SECRET_BYTES_MIN).open(SEALER.seal(b"x")) is None
    with pytest.raises(ValueError, match="the cluster secret has 15 bytes"):
        Sealer(b"s" * 15)


def test_every_flipped_bit_and_every_cut_is_seen() -> None:
    good = SEALER.seal(b"payload")
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert SEALER.open(bytes(bad)) is None
    for end in range(len(good)):
        assert SEALER.open(good[:end]) is None
    assert SEALER.open(good + b"x") is None


@given(st.binary(max_size=DATAGRAM_BYTES_MAX + 100))
def test_garbage_opens_nothing(datagram: bytes) -> None:
    assert SEALER.open(datagram) is None
