from __future__ import annotations

import pytest

from tidelog_broker.core.security.api_keys import VerifiedSecrets, slow_hash
from tidelog_proto.auth.api_key import Key, parse_key
from tidelog_proto.errors import ProtocolError

TEXT = "tlk_abcdefghij234567_" + "s" * 43


def test_key_is_parsed() -> None:
    assert parse_key(TEXT) == Key("abcdefghij234567", "s" * 43)


BAD = ["", "tlk_abc", TEXT + "s", TEXT.upper(), TEXT.replace("tlk", "abc"), TEXT + "\n", "ü" * 64]


@pytest.mark.parametrize("bad", BAD)
def test_invalid_key_is_refused_without_repeating_it(bad: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        parse_key(bad)
    assert not bad or bad not in refused.value.message


def test_slow_hash_depends_on_secret_and_salt() -> None:
    hashes = {slow_hash(secret, salt) for secret in ("a", "b") for salt in (bytes(16), b"\1" * 16)}
    assert len(hashes) == 4
    assert {len(one) for one in hashes} == {32}


def test_cached_secret_matches_one_key_secret_and_hash() -> None:
    known = VerifiedSecrets(bytes(32), entries_max=2)
    known.learn(Key("a", "s"), b"hash")
    assert known.knows(Key("a", "s"), b"hash")
    assert not known.knows(Key("a", "t"), b"hash")
    assert not known.knows(Key("b", "s"), b"hash")
    assert not known.knows(Key("a", "s"), b"another")
    known.learn(Key("b", "s"), b"hash")
    known.learn(Key("c", "s"), b"hash")
    assert not known.knows(Key("a", "s"), b"hash"), "the oldest is forgotten"
