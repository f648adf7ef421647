from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.membership.datagram_auth import SECRET_BYTES_MIN, DatagramAuth
from tidelog_broker.core.membership.gossip_messages import DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX

AUTH = DatagramAuth(ClusterSecrets(b"s" * SECRET_BYTES_MIN))


def test_signed_datagrams_up_to_the_maximum_size_are_verified() -> None:
    for payload in (b"", b"x", bytes(PAYLOAD_BYTES_MAX)):
        assert AUTH.verify(AUTH.sign(payload)) == payload
    assert len(AUTH.sign(bytes(PAYLOAD_BYTES_MAX))) == DATAGRAM_BYTES_MAX


def test_datagram_with_another_secret_is_rejected() -> None:
    assert DatagramAuth(ClusterSecrets(b"t" * SECRET_BYTES_MIN)).verify(AUTH.sign(b"x")) is None
    with pytest.raises(ValueError, match="at least 16 bytes, got 15"):
        DatagramAuth(ClusterSecrets(b"s" * 15))


def test_secret_rotation_loses_no_datagram() -> None:
    old, new = b"o" * SECRET_BYTES_MIN, b"n" * SECRET_BYTES_MIN
    steps = [(old,), (old, new), (new, old), (new,)]
    for before, after in pairwise(steps):
        one, other = ClusterSecrets(*before), ClusterSecrets(*after)
        for signing, verifying in ((one, other), (other, one)):
            assert DatagramAuth(verifying).verify(DatagramAuth(signing).sign(b"x")) == b"x"
    secrets = ClusterSecrets(*steps[0])
    auth = DatagramAuth(secrets)
    assert secrets.replace(steps[3])
    assert not secrets.replace(steps[3])
    assert auth.verify(DatagramAuth(ClusterSecrets(old)).sign(b"x")) is None


def test_every_flipped_bit_and_truncation_is_detected() -> None:
    good = AUTH.sign(b"payload")
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert AUTH.verify(bytes(bad)) is None
    for end in range(len(good)):
        assert AUTH.verify(good[:end]) is None
    assert AUTH.verify(good + b"x") is None


@given(st.binary(max_size=DATAGRAM_BYTES_MAX + 100))
def test_garbage_is_rejected(datagram: bytes) -> None:
    assert AUTH.verify(datagram) is None
