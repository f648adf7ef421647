from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.membership.datagram_auth import SECRET_BYTES_MIN, DatagramAuth
from tidelog_broker.core.membership.gossip_messages import DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX

AUTH = DatagramAuth(b"s" * SECRET_BYTES_MIN)


def test_what_is_signed_is_verified_up_to_the_longest() -> None:
    for payload in (b"", b"x", bytes(PAYLOAD_BYTES_MAX)):
        assert AUTH.verify(AUTH.sign(payload)) == payload
    assert len(AUTH.sign(bytes(PAYLOAD_BYTES_MAX))) == DATAGRAM_BYTES_MAX


def test_another_secret_opens_nothing() -> None:
    assert DatagramAuth(b"t" * SECRET_BYTES_MIN).verify(AUTH.sign(b"x")) is None
    with pytest.raises(ValueError, match="the cluster secret has 15 bytes"):
        DatagramAuth(b"s" * 15)


def test_every_flipped_bit_and_every_cut_is_seen() -> None:
    good = AUTH.sign(b"payload")
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert AUTH.verify(bytes(bad)) is None
    for end in range(len(good)):
        assert AUTH.verify(good[:end]) is None
    assert AUTH.verify(good + b"x") is None


@given(st.binary(max_size=DATAGRAM_BYTES_MAX + 100))
def test_garbage_opens_nothing(datagram: bytes) -> None:
    assert AUTH.verify(datagram) is None
