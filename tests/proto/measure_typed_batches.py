"""Measures typed batches beside canonical batches of the same rows as JSON: encoding, validation, size, projection.

    python -m tests.proto.measure_typed_batches [--seconds 0.2] [--rounds 5]

Rows of flights: ten fields, among them a time and a key. The canonical batch has the same time and key as columns, and
all fields as JSON in its values; "no times" compares with one of keys and values only. Times are the best round, CPU of
one thread, in us a batch. "new head" is the validation of a batch whose lengths have not occurred before. A projection
has one field of ten; its bytes and the time of the cut are beside the bytes of the whole typed batch and the time of
the check of its CRC.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tidelog_proto.batch.header import Buffer, Codec, Flags, crc_checked_body, unpack_header
from tidelog_proto.batch.quick_rows import places_in
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_projection import project_rows
from tidelog_proto.batch.typed_rows import stored_columns
from tidelog_proto.batch.typed_verification import verify_typed
from tidelog_proto.batch.verification import checked_plain, verify_batch
from tidelog_proto.schema.data_types import FLOAT64, INT32, STRING, TIMESTAMP_UTC
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

FLIGHTS = Schema(
    1,
    11,
    (
        Field(1, "scheduled", TIMESTAMP_UTC, required=True, role=Role.TIME),
        Field(2, "carrier", STRING, required=True, role=Role.KEY),
        Field(3, "flight", INT32, required=True),
        Field(4, "tail_number", STRING),
        Field(5, "origin", STRING, required=True),
        Field(6, "destination", STRING, required=True),
        Field(7, "departure_delay", INT32),
        Field(8, "arrival_delay", INT32),
        Field(9, "distance", INT32, required=True),
        Field(10, "air_time", FLOAT64),
    ),
)
NOW_US = 1_780_000_000_000_000
COUNTS = (1, 2, 10, 100, 1_000, 10_000)


def rows(count: int) -> list[dict[str, Any]]:
    carriers, airports = ("UA", "AA", "B6", "DL"), ("EWR", "LGA", "JFK", "IAH", "MIA")
    return [
        {
            "scheduled": NOW_US + at * 60_000_000,
            "carrier": carriers[at % 4],
            "flight": 1545 + at * 7 % 4000,
            "tail_number": f"N{14228 + at * 31 % 60000}",
            "origin": airports[at % 3],
            "destination": airports[at * 7 % 5],
            "departure_delay": at * 13 % 90 - 10,
            "arrival_delay": at * 17 % 120 - 20,
            "distance": 500 + at * 37 % 2000,
            "air_time": 60.5 + at * 11 % 300,
        }
        for at in range(count)
    ]


def best_us(rounds: int, seconds: float, call: Callable[[], object]) -> float:
    """Return the time of one call in the best of some rounds."""
    call()
    best = float("inf")
    for _ in range(rounds):
        calls, begun = 0, time.thread_time()
        while time.thread_time() - begun < seconds:
            for _ in range(10):
                call()
            calls += 10
        best = min(best, (time.thread_time() - begun) / calls)
    return best * 1e6


def figures(count: int, codec: Codec, rounds: int, seconds: float) -> Iterator[tuple[str, float, float]]:
    """Yield what was measured of batches of `count` rows, for typed and for canonical ones."""
    layout, given = row_layout(FLIGHTS), rows(count)
    layouts = {layout.number: layout}
    table = pa.RecordBatch.from_pylist(given, schema=layout.row_schema)

    def canonical() -> pa.RecordBatch:
        values = [json.dumps(row).encode() for row in given]
        keys = [row["carrier"].encode() for row in given]
        return columns_of(values, keys=keys, timestamps_us=[row["scheduled"] for row in given])

    def typed(table: pa.RecordBatch) -> bytes:
        return encode_batch(stored_columns(layout, table), now_us=NOW_US, codec=codec, layout=layout).to_bytes()

    def of_dicts() -> bytes:
        return typed(pa.RecordBatch.from_pylist(given, schema=layout.row_schema))

    def of_json(columns: pa.RecordBatch) -> bytes:
        return encode_batch(columns, now_us=NOW_US, codec=codec).to_bytes()

    columns = canonical()
    stored, plain = typed(table), of_json(columns)
    untimed = encode_batch(columns.select(["key", "value"]), now_us=NOW_US, codec=codec).to_bytes()
    yield "bytes", len(stored), len(plain)
    for name, one, other in (
        ("encode dicts", of_dicts, lambda: of_json(canonical())),
        ("encode Arrow", lambda: typed(table), lambda: of_json(canonical())),
        ("encode columns", lambda: typed(table), lambda: of_json(columns)),
        ("verify", lambda: verify_typed(stored, layouts), lambda: verify_batch(plain)),
        ("verify, no times", lambda: verify_typed(stored, layouts), lambda: verify_batch(untimed)),
        (
            "verify, new head",
            forgetting(lambda: verify_typed(stored, layouts)),
            forgetting(lambda: verify_batch(plain)),
        ),
    ):
        yield name, best_us(rounds, seconds, one), best_us(rounds, seconds, other)
    header = unpack_header(stored, typed=True)
    for name, field in (("distance", 9), ("origin", 5)):
        fields = frozenset({field})

        def cut(fields: frozenset[int] = fields) -> Buffer:
            return project_rows(stored, layout, columns=Flags.VALUE, fields=fields)

        yield f"bytes of {name}", len(cut()), len(stored)
        yield (
            f"cut {name}",
            best_us(rounds, seconds, cut),
            best_us(rounds, seconds, lambda: crc_checked_body(header, stored)),
        )


def forgetting(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call before which the remembered metadata of messages are forgotten."""

    def forget() -> None:
        places_in.cache_clear()
        checked_plain.cache_clear()
        call()

    return forget


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=0.05)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--counts", type=int, nargs="*", default=COUNTS)
    given = arguments.parse_args()
    for codec in (Codec.NONE, Codec.LZ4):
        for count in given.counts:
            for name, typed, canonical in figures(count, codec, given.rounds, given.seconds):
                ratio = typed / canonical
                print(f"{codec.name:5} {count:6} {name:17} {typed:10.1f} {canonical:10.1f} {ratio:7.2f}", flush=True)


if __name__ == "__main__":
    main()
