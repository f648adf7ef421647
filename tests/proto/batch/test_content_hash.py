"""Hashes of contents: equal for equal contents, whatever lies around them, and by the formula that is described."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog_proto.batch.columns import Headers
from tidelog_proto.batch.content_hash import ContentHasher, first_of_each
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch

KEY = bytes(range(16))


class Content(NamedTuple):
    """The hashed parts of a record."""

    value: bytes | None
    key: bytes | None = None
    tag: str | None = None
    headers: Headers = ()


def hashes(*contents: Content, key: bytes = KEY, codec: Codec = Codec.NONE, at_us: int = 1) -> list[tuple[int, int]]:
    columns = columns_of(
        [one.value for one in contents],
        keys=[one.key for one in contents] if any(one.key is not None for one in contents) else None,
        tags=[one.tag for one in contents] if any(one.tag is not None for one in contents) else None,
        headers=[one.headers for one in contents] if any(one.headers for one in contents) else None,
        timestamps_us=[at_us] * len(contents),
    )
    batch = RecordBatch.parse(encode_batch(columns, now_us=1, codec=codec).to_bytes())
    return [(int(one), int(two)) for one, two in ContentHasher(key).hashes(batch)]


BYTES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([bytes(255), bytes(256), bytes(257), bytes(1000), b"x" * 300]),
)
CONTENTS = st.builds(
    Content,
    st.none() | BYTES,
    st.none() | BYTES,
    st.none() | st.text(max_size=10),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=20).map(tuple),
)


@given(contents=st.lists(CONTENTS, min_size=1, max_size=12), codec=st.sampled_from(list(Codec)))
@settings(max_examples=150)
def test_equal_where_contents_are(contents: list[Content], codec: Codec) -> None:
    together = hashes(*contents, codec=codec)
    for one, hashed in zip(contents, together, strict=True):
        assert hashes(one, at_us=2) == [hashed]
    assert len(set(together)) == len(set(contents))
    first = first_of_each(np.array(together, np.uint64).reshape(-1, 2))
    assert first.tolist() == [one not in contents[:at] for at, one in enumerate(contents)]


def test_the_formula() -> None:
    key, value = b"0123456789", b"x" * 300
    drawn = {name: _drawn(name) for name in ("start", "key", "value")}
    long = hashlib.blake2b(value, digest_size=16, key=hashlib.blake2b(b"value", key=KEY, digest_size=32).digest())
    sums = []
    for number in range(4):
        total = drawn["start"][number]
        for name, length, words in (("key", len(key), key), ("value", len(value), long.digest())):
            padded = words + bytes(-len(words) % 4)
            numbers = [length + 1, *(int.from_bytes(padded[at : at + 4], "little") for at in range(0, len(padded), 4))]
            total += sum(one * drawn[name][4 * at + number] for at, one in enumerate(numbers))
        sums.append(total % 2**64 >> 32)
    assert hashes(Content(value, key)) == [(sums[0] << 32 | sums[1], sums[2] << 32 | sums[3])]


def _drawn(name: str) -> list[int]:
    raw = hashlib.shake_256(KEY + name.encode()).digest(65 * 4 * 8)
    return [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8)]


def test_another_key_gives_other_hashes() -> None:
    assert hashes(Content(b"a")) != hashes(Content(b"a"), key=bytes(16))


def test_flipped_upper_bits_do_not_cancel_out() -> None:
    # Of a hash that multiplies and folds words by known numbers these two are the same under every seed.
    one = bytes(16)
    two = (1 << 63).to_bytes(8, "little") + (1 << 63 | 1 << 34).to_bytes(8, "little")
    assert hashes(Content(one)) != hashes(Content(two))


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 3000])
def test_blocks_of_rows(count: int) -> None:
    contents = [Content(b"%d" % (number * 7919) * (number % 4)) for number in range(count)]
    together = hashes(*contents)
    for at in {0, count // 2, count - 1}:
        assert hashes(contents[at]) == [together[at]]
    assert len(set(together)) == len(set(contents))
