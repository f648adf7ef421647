"""Derivation of batches: survivors are unchanged, batches tile, and the result depends on survivors and range only."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS, EVERYTHING, NOW_US, Given, given_records
from tests.proto.derived_batches import nothing_left
from tests.proto.deriving import derive_batches

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import derived_batch
from tidelog_proto.batch.derived_batch import SPAN_MAX, Deriver, filter_batch
from tidelog_proto.batch.header import Buffer, Codec, Flags, digest_after, stamp_owner, unpack_header
from tidelog_proto.batch.record import Record
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.batch.retained_records import APPEND_QUANTUM_US, Keep
from tidelog_proto.batch.verification import verify_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_BYTES_MAX, BATCH_UNCOMPRESSED_BYTES_MAX, DERIVED_EXTRA_BYTES, KIB, MIB

EPOCH = 5


def stamped(raw: Buffer, base_offset: int, append_us: int = NOW_US) -> bytes:
    batch = bytearray(raw)
    stamp_owner(
        batch,
        base_offset=base_offset,
        append_timestamp_us=append_us,
        epoch=EPOCH,
        owner_incarnation=9,
        previous_digest=0,
    )
    return bytes(batch)


def stored(records: Given, base_offset: int, *, append_us: int = NOW_US, codec: Codec = Codec.NONE) -> bytes:
    encoded = encode_batch(records.columns(), now_us=NOW_US + base_offset, codec=codec, producer_id=3, base_sequence=7)
    return stamped(encoded.to_bytes(), base_offset, append_us)


def of_values(values: Sequence[bytes | None], base_offset: int = 0, **more: Any) -> bytes:
    return stored(Given(list(values)), base_offset, **more)


def records_of(batches: Sequence[Buffer]) -> list[Record]:
    return [record for one in batches for record in RecordBatch.parse(one)]


def keeping(batches: Sequence[Buffer], offsets: set[int]) -> list[Keep]:
    """Return the masks that let these offsets survive."""
    parsed = [RecordBatch.parse(one) for one in batches]
    return [np.array([offset in offsets for offset in one.offsets().to_pylist()], np.bool_) for one in parsed]


def derive(batches: Sequence[Buffer], offsets: set[int]) -> list[bytes]:
    """Derive, and hold the result against everything that is promised of any."""
    start, end = unpack_header(batches[0]).base_offset, unpack_header(batches[-1]).end_offset
    made = [bytes(one) for one in derive_batches(batches, keeping(batches, offsets), epoch=EPOCH, previous_digest=11)]
    digest = 11
    for one in made:
        header = verify_stored(one)
        assert header.base_offset == start
        assert (header.epoch, header.owner_incarnation) == (EPOCH, 0)
        assert digest_after(one, 0, digest) == header.digest
        assert header.flags & Flags.DERIVED
        start, digest = header.end_offset, header.digest
    assert start == end
    assert records_of(made) == [record for record in records_of(batches) if record.offset in offsets]
    return made


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Draw consecutive batches: any columns, any codec, append times that lie close or far apart."""
    batches: list[bytes] = []
    offset = draw(st.integers(0, 5))
    append_us = NOW_US
    for _ in range(draw(st.integers(1, 6))):
        records = draw(given_records(max_size=8))
        append_us += draw(st.sampled_from([0, 1, APPEND_QUANTUM_US, -APPEND_QUANTUM_US]))
        batches.append(stored(records, offset, append_us=append_us, codec=draw(st.sampled_from(CODECS))))
        offset += len(records.values)
    return batches


def some_of(batches: Sequence[Buffer]) -> st.SearchStrategy[set[int]]:
    offsets = [record.offset for record in records_of(batches)]
    return st.sets(st.sampled_from(offsets)) if offsets else st.just(set[int]())


@pytest.fixture(params=["one batch", "many batches"])
def small_groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the properties hold for groups of a few records, too, and for groups that one record fills."""
    if request.param == "many batches":
        monkeypatch.setattr(derived_batch, "DERIVED_RECORDS_MAX", 5)
        monkeypatch.setattr(derived_batch, "DERIVED_WEIGHT_BYTES_MAX", 150)
        monkeypatch.setattr(derived_batch, "SPAN_MAX", 7)


@pytest.mark.usefixtures("small_groups")
@given(data=st.data(), log=logs())
@settings(max_examples=150)
def test_rounds_do_not_matter(data: st.DataObject, log: list[bytes]) -> None:
    """Deriving the originals at once, in one round before, or in two, makes the same bytes."""
    first, second, third = (data.draw(some_of(log)) for _ in range(3))
    at_once = derive(log, first & second & third)
    after_one = derive(derive(log, first), second & third)
    after_two = derive(derive(derive(log, first), first & second), third)
    assert at_once == after_one == after_two
    assert derive(at_once, first & second & third) == at_once


@pytest.mark.usefixtures("small_groups")
@given(data=st.data(), records=given_records(max_size=20))
@settings(max_examples=100)
def test_the_borders_of_the_sources_do_not_matter(data: st.DataObject, records: Given) -> None:
    """The same records in batches of any size, in any codec, with or without empty columns, make the same bytes."""
    count = len(records.values)
    survivors = data.draw(st.sets(st.integers(0, count - 1)))
    stamps = records.timestamps_us or [NOW_US] * count
    whole = Given(records.values, records.keys, stamps, records.headers, records.tags).columns()
    results: list[list[bytes]] = []
    for _ in range(2):
        cuts = sorted({0, count, *data.draw(st.sets(st.integers(1, count), max_size=4))})
        log: list[bytes] = []
        for start, end in itertools.pairwise(cuts):
            columns = without_what_is_not_used(whole.slice(start, end - start), data.draw(st.booleans()))
            encoded = encode_batch(columns, now_us=1, codec=data.draw(st.sampled_from(CODECS))).to_bytes()
            log.append(stamped(encoded, start))
        results.append(derive(log, survivors))
    assert results[0] == results[1]


def without_what_is_not_used(columns: pa.RecordBatch, really: bool) -> pa.RecordBatch:
    """Return the columns without those that are null or empty for all records."""
    names = columns.schema.names
    if really:
        names = [name for name in names if name in {"timestamp", "value"} or any(columns.column(name).to_pylist())]
        names += [name for name in ("key", "tag") if name not in names and says_something(columns, name)]
    return columns.select([name for name in columns.schema.names if name in names])


def says_something(columns: pa.RecordBatch, name: str) -> bool:
    return name in columns.schema.names and columns.column(name).null_count < columns.num_rows


def test_bytes_that_hide_in_an_array_do_not_matter() -> None:
    """A null may have bytes under it, a bitmap bits behind its end: neither is passed on."""
    plain = pa.array([b"a", None, b"ccc", None], pa.binary())
    offsets = np.array([0, 1, 7, 10, 12], np.int32)
    buffers: list[pa.Buffer | None] = [
        pa.py_buffer(b"\xf5"),
        pa.py_buffer(offsets.tobytes()),
        pa.py_buffer(b"ahidden"[:7] + b"ccc" + b"!!"),
    ]
    hiding = pa.Array.from_buffers(pa.binary(), 4, buffers)
    assert hiding.equals(plain)
    logs_of_it: list[list[bytes]] = []
    for array in (plain, hiding):
        encoded = encode_batch(pa.RecordBatch.from_arrays([array, array], ["key", "value"]), now_us=NOW_US)
        logs_of_it.append([stamped(encoded.to_bytes(), 0)])
    assert logs_of_it[0] != logs_of_it[1]
    for survivors in ({0, 1, 2, 3}, {1, 2}, {1}):
        assert derive(logs_of_it[0], survivors) == derive(logs_of_it[1], survivors)


def test_a_gap_belongs_to_the_batch_before_it() -> None:
    log = [of_values([b"a"] * 10), of_values([b"b"] * 10, 10)]
    (made,) = derive(log, {3, 14})
    header = unpack_header(made)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 19, 2)


def test_nothing_survives() -> None:
    log = [of_values([b"a"] * 10, 100), of_values([b"b"] * 10, 110)]
    (made,) = derive(log, set())
    header = unpack_header(made)
    assert (len(made), header.record_count, header.last_offset_delta) == (128, 0, 19)
    assert (header.append_timestamp_us, header.body_crc, header.flags) == (0, 0, Flags.DERIVED)
    assert derive([made], set()) == [made]


def far(*, first: int = 0) -> list[bytes]:
    """A log of three records with a stretch of 2.5 spans between the first two, as compaction leaves it."""
    gap = 2 * SPAN_MAX + SPAN_MAX // 2
    batches = [of_values([b"a"], first)] if first >= 0 else []
    at = first + 1
    while at < gap:
        end = min(at + SPAN_MAX // 2, gap)
        batches.append(stamped(nothing_left(base=at, end=end), at, 0))
        at = end
    return [*batches, of_values([b"b", b"c"], at)]


def test_stretches_that_one_batch_cannot_cover() -> None:
    log = far()
    end = unpack_header(log[-1]).end_offset
    made = derive(log, {0, end - 1, end - 2})
    spans = [(header.record_count, header.last_offset_delta + 1) for header in map(unpack_header, made)]
    assert spans == [(1, SPAN_MAX), (0, SPAN_MAX), (0, SPAN_MAX // 2), (2, 2)]
    assert derive(made, {0}) == derive(log, {0})
    made = derive(log, {end - 1})
    spans = [(header.record_count, header.last_offset_delta + 1) for header in map(unpack_header, made)]
    assert spans == [(0, SPAN_MAX), (0, SPAN_MAX), (1, SPAN_MAX // 2 + 2)]
    assert RecordBatch.parse(made[-1]).offsets().to_pylist() == [end - 1]
    assert derive(derive(log, {0, end - 1}), {end - 1}) == made


def test_records_are_grouped_up_to_the_limits() -> None:
    log = [of_values([b"x" * 40] * 30_000, 0), of_values([b"x" * 40] * 30_000, 30_000)]
    made = derive(log, set(range(60_000)))
    counts = [unpack_header(one).record_count for one in made]
    assert counts[:-1] == [min(derived_batch.DERIVED_RECORDS_MAX, derived_batch.DERIVED_WEIGHT_BYTES_MAX // 68)] * (
        len(counts) - 1
    )
    rng = random.Random(7)
    log = [of_values([rng.randbytes(300_000) for _ in range(5)], 0), of_values([rng.randbytes(2 * MIB), b"y"], 5)]
    made = derive(log, set(range(7)))
    assert [unpack_header(one).record_count for one in made] == [3, 2, 1, 1]
    assert {unpack_header(one).codec for one in made} == {Codec.NONE}


def test_control_records_and_others_are_kept_apart() -> None:
    control = encode_batch(columns_of([b"c"]), now_us=1, control=True).to_bytes()
    log = [of_values([b"a", b"b"]), stamped(control, 2), of_values([b"d"], 3)]
    made = derive(log, {1, 2, 3})
    assert [RecordBatch.parse(one).control for one in made] == [False, True, False]
    assert len(derive(made, {1, 3})) == 1


def test_append_timestamps_are_rounded_up_and_kept_apart() -> None:
    log = [
        of_values([b"a"], 0, append_us=1),
        of_values([b"b"], 1, append_us=APPEND_QUANTUM_US),
        of_values([b"c"], 2, append_us=APPEND_QUANTUM_US + 1),
        of_values([b"d"], 3, append_us=2**63 - 1),
        of_values([b"e"], 4, append_us=-1),
    ]
    headers = [unpack_header(one) for one in derive(log, {0, 1, 2, 3, 4})]
    last = (2**63 - 1) // APPEND_QUANTUM_US * APPEND_QUANTUM_US
    assert [header.append_timestamp_us for header in headers] == [APPEND_QUANTUM_US, 2 * APPEND_QUANTUM_US, last, 0]
    assert [header.record_count for header in headers] == [2, 1, 1, 1]


def test_compressible_batch_is_compressed() -> None:
    rng = random.Random(3)
    for values, codec in (
        ([b"x" * 100] * 100, Codec.LZ4),
        ([rng.randbytes(100) for _ in range(100)], Codec.NONE),
        ([b"x"], Codec.NONE),
    ):
        (made,) = derive([of_values(values, codec=Codec.GZIP)], set(range(len(values))))
        assert unpack_header(made).codec is codec


def test_the_largest_records_fit() -> None:
    """A batch that fits a producer's limits fits a derived batch with two more columns."""
    rng = random.Random(5)
    value = rng.randbytes(BATCH_BYTES_MAX - 1024)
    room = BATCH_BYTES_MAX - len(of_values([value]))
    log = [of_values([value + rng.randbytes(room // 8 * 8)])]
    assert BATCH_BYTES_MAX - len(log[0]) < 8
    (made,) = derive(log, {0})
    assert BATCH_BYTES_MAX < len(made) <= BATCH_BYTES_MAX + DERIVED_EXTRA_BYTES
    value = (rng.randbytes(256 * KIB) * 256)[: BATCH_UNCOMPRESSED_BYTES_MAX - 1024]  # too far apart for lz4
    log = [of_values([value], codec=Codec.ZSTD)]
    (made,) = derive(log, {0})
    assert unpack_header(made).codec is Codec.ZSTD


def test_incompressible_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived_batch, "_DERIVED_BYTES_MAX", 300)
    with pytest.raises(ProtocolError) as refused:
        derive_batches([of_values([random.Random(1).randbytes(1000)])], [None], epoch=1)
    assert refused.value.code == pb.BATCH_TOO_LARGE


def test_batches_that_do_not_continue_each_other() -> None:
    deriver = Deriver(0, epoch=1)
    deriver.add(RecordBatch.parse(of_values([b"a", b"b"])))
    for base in (1, 3):
        with pytest.raises(ValueError, match="begins at offset 2, got"):
            deriver.add(RecordBatch.parse(of_values([b"a"], base)))
    wrongs: list[Any] = [np.ones(2, np.bool_), np.ones(1, np.int64)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="one bool per record"):
            deriver.add(RecordBatch.parse(of_values([b"a"], 2)), wrong)
    assert deriver.end_offset == 2
    with pytest.raises(ValueError, match="begins at offset 2, got"):
        deriver.add(RecordBatch.parse(of_values([b"a", b"b", b"c"], 2)).slice_from(3))


def test_a_deriver_holds_no_more_than_it_must() -> None:
    """Output comes as soon as it is complete, and the memory of sources is not kept for a record of each."""
    deriver = Deriver(0, epoch=1)
    before = pa.total_allocated_bytes()
    keep = np.zeros(1000, np.bool_)
    keep[500] = True
    for number in range(50):
        assert not deriver.add(RecordBatch.parse(of_values([b"x" * 1000] * 1000, 1000 * number)), keep)
    assert pa.total_allocated_bytes() - before < MIB
    (made,) = deriver.finish()
    assert unpack_header(made).record_count == 50
    assert deriver.digest == unpack_header(made).digest


# ------------------------------------------------------------------- filters


@pytest.mark.parametrize("codec", CODECS)
def test_filters(codec: Codec) -> None:
    raw = stored(EVERYTHING, 40, codec=codec)
    for key, tag, offsets in (
        (b"k", None, [40]),
        (b"", None, [42]),
        (None, "red", [40]),
        (None, "", [42]),
        (b"k", "red", [40]),
    ):
        found = filter_batch(raw, key=key, tag=tag)
        assert found is not None
        header = verify_stored(found)
        assert (header.base_offset, header.end_offset, header.append_timestamp_us) == (40, 43, NOW_US)
        assert [record.offset for record in RecordBatch.parse(found)] == offsets
    for key, tag in ((b"red", None), (None, "k"), (b"k", "")):
        assert filter_batch(raw, key=key, tag=tag) is None


def test_filters_of_all_or_nothing() -> None:
    raw = stored(Given([b"a", b"b"], keys=[b"k", b"k"]), 7)
    assert filter_batch(raw, key=b"k") is raw
    assert filter_batch(raw) is raw
    assert filter_batch(raw, tag="t") is None
    assert filter_batch(nothing_left(base=3, end=9), key=b"k") is None
    control = encode_batch(columns_of([b"c"], keys=[b"k"]), now_us=1, control=True).to_bytes()
    assert filter_batch(control, key=b"k") is None


def test_filters_of_derived_batches() -> None:
    raw = stored(Given([b"a", b"b", b"c"], keys=[b"x", b"y", b"x"]), 7)
    (made,) = derive([raw], {8, 9})
    found = filter_batch(made, key=b"x")
    assert found is not None
    assert [record.offset for record in RecordBatch.parse(found)] == [9]
    assert unpack_header(found).base_offset == 7
