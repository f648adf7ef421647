"""The last record of a key is the one that a comparison of all keys finds, and is returned unchanged and alone."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tidelog_proto.batch import newest_row as module
from tidelog_proto.batch.derived_batch import kept_rows, matching_rows
from tidelog_proto.batch.header import Codec, Flags, stamp_owner
from tidelog_proto.batch.newest_row import newest_row, record_alone
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.batch.single_record import SINGLE_BYTES_MAX

KEYS = (None, b"", b"a", b"aa", b"aaa", b"ab", b"\xff\x80", b"\xff\x80\xff\x80", b"k" * 300)
TAGS = (None, "", "a", "ä")


def random_columns(random: Random) -> Any:
    count = random.choice((1, 2, 7, 60))
    keys = [random.choice(KEYS) for _ in range(count)]
    return columns_of(
        [None if random.random() < 0.1 else b"value-%d" % row for row in range(count)],
        keys=keys if random.random() < 0.9 else None,
        tags=[random.choice(TAGS) for _ in range(count)] if random.random() < 0.5 else None,
        headers=[[("name", b"%d" % row)] * random.choice((0, 1)) for row in range(count)]
        if random.random() < 0.3
        else None,
        timestamps_us=[random.randrange(1 << 50) for _ in range(count)] if random.random() < 0.5 else None,
    )


def stored(columns: Any, codec: Codec = Codec.NONE, *, offset: int = 70, control: bool = False) -> RecordBatch:
    raw = bytearray(encode_batch(columns, now_us=5, codec=codec, control=control).to_bytes())
    stamp_owner(raw, base_offset=offset, append_timestamp_us=9, epoch=3, owner_incarnation=4, previous_digest=17)
    return RecordBatch.parse(bytes(raw))


def compared(batch: RecordBatch, key: bytes | None, tag: str | None) -> int | None:
    rows = matching_rows(batch, key=key, tag=tag)
    return None if rows is None else int(np.flatnonzero(rows)[-1])


@pytest.mark.parametrize("seed", range(150))
def test_row_and_record_are_those_of_a_comparison_of_all_keys(seed: int) -> None:
    random = Random(seed)
    batch = stored(random_columns(random), random.choice((Codec.NONE, Codec.LZ4)), control=random.random() < 0.05)
    keep = np.array([random.random() < 0.6 for _ in range(len(batch))])
    if not batch.control and keep.any() and random.random() < 0.3:
        batch = RecordBatch.parse(kept_rows(batch, keep) or b"")
    for key in (*KEYS, b"absent"):
        for tag in (*TAGS, "absent"):
            row = newest_row(batch, key=key, tag=tag)
            assert row == compared(batch, key, tag), (key, tag)
            if row is None:
                continue
            alone = RecordBatch.parse(record_alone(batch, row))
            assert list(alone) == [list(batch)[row]]
            assert (alone.header.epoch, alone.header.append_timestamp_us) == (3, batch.header.append_timestamp_us)


def test_key_across_two_keys_is_not_found() -> None:
    batch = stored(columns_of([b"v"] * 4, keys=[b"ab", b"cd", b"xbc", b"bcx"]))
    assert newest_row(batch, key=b"bc", tag=None) is None
    assert newest_row(batch, key=b"cd", tag=None) == 1


def test_keys_are_not_compared_by_arrow_where_few_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes | None] = []

    def counted(batch: RecordBatch, *, key: bytes | None, tag: str | None) -> Any:
        calls.append(key)
        return matching_rows(batch, key=key, tag=tag)

    monkeypatch.setattr(module, "matching_rows", counted)
    keys = [b"%08d" % number for number in range(5000)]
    batch = stored(columns_of([b"v"] * 5001, keys=[*keys, b"00000007"]))
    assert newest_row(batch, key=b"00000007", tag=None) == 5000
    assert newest_row(batch, key=b"absent", tag=None) is None
    assert not calls
    assert newest_row(stored(columns_of([b"v"] * 50, keys=[b"same"] * 50)), key=b"same", tag=None) == 49
    monkeypatch.setattr(module, "TEXT_BYTES_MAX", 40_007)
    assert newest_row(batch, key=b"00000007", tag=None) == 5000
    assert calls == [b"same", b"00000007"], "frequent keys, and keys of more bytes than the bound"


@pytest.mark.parametrize(
    ("columns", "is_plain"),
    [
        (columns_of([b"1", b"2"], keys=[b"a", b"b"], tags=["x", None]), True),
        (columns_of([b"1", b"2"], keys=[b"a", b"b"], headers=[[("n", b"v")], []]), True),
        (columns_of([b"1", b"2"], keys=[b"a", b"b"], headers=[[], [("n", b"v")]]), False),
        (columns_of([b"1", None], keys=[b"a", b"b"]), False),
        (columns_of([b"1", bytes(SINGLE_BYTES_MAX)], keys=[b"a", b"b"]), False),
    ],
    ids=["tag", "others have headers", "headers", "tombstone", "large"],
)
def test_record_is_plain_unless_it_needs_more(columns: Any, is_plain: bool) -> None:
    batch = stored(columns)
    alone = RecordBatch.parse(record_alone(batch, 1))
    assert list(alone) == [list(batch)[1]]
    assert (not alone.header.flags & Flags.DERIVED) == is_plain
    assert alone.end_offset == 72
