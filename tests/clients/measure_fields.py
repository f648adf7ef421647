"""Measures reads of one of ten fields of a typed topic: bytes received, CPU of the node and of the client.

    python -m tests.clients.measure_fields DIRECTORY [--records 400000] [--batch 10000] [--rounds 5]

A node in a process of its own, with batches of the given size in files. "whole" is a read of all fields by
`tidelog.read_arrow`; the others name one field. CPU is user and system time, the least of the rounds.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from tests.clients.test_real_node import RealNode
from tests.proto.measure_typed_batches import FLIGHTS, rows

from tidelog import sync
from tidelog.requests.offset_ranges import OffsetRange, fetch_options, fetch_range
from tidelog.tables.typed_tables import TypedTable
from tidelog_proto.batch.row_layout import row_layout

CODECS: tuple[Literal["lz4", "zstd"] | None, ...] = (None, "lz4", "zstd")
READS: dict[str, list[str] | None] = {
    "whole": None,
    "number (int32)": ["arrival_delay"],
    "number (float64)": ["air_time"],
    "text": ["tail_number"],
    "the key": ["carrier"],
    "the time": ["scheduled"],
}


def node_cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(numbers[11]) + int(numbers[12])) / 100


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read(client: sync.Client, span: OffsetRange, typed: TypedTable) -> tuple[int, int]:
    """Read a range as `read_arrow` does; return the bytes of its batches, and its rows."""
    options = fetch_options(span)
    typed.narrow(options)
    size_bytes = found = 0

    def fetch(offset: int) -> Any:
        return client.fetch(span.topic, span.partition, offset, **options)

    def lost(*of: Any) -> None:
        raise AssertionError(of)

    for batch in fetch_range(span, fetch, lost):
        size_bytes += batch.header.length
        found += typed.table(batch, 0, span.start, span.end).num_rows
    return size_bytes, found


def measure(client: sync.Client, pid: int, topic: str, records: int, rounds: int) -> None:
    schema = client.schema(topic)
    whole_bytes = 0
    print(f"{topic:18}{'bytes/row':>12}{'of whole':>10}{'node ns/row':>13}{'client ns/row':>15}")
    for name, columns in READS.items():
        typed, span = TypedTable(schema, columns), OffsetRange(topic, 0, 0, records)
        node_s, client_s, size_bytes = [], [], 0
        for _ in range(rounds):
            before = node_cpu_s(pid), own_cpu_s()
            repeats = 5
            for _ in range(repeats):
                size_bytes, found = read(client, span, typed)
                assert found == records
            node_s.append((node_cpu_s(pid) - before[0]) / repeats)
            client_s.append((own_cpu_s() - before[1]) / repeats)
        whole_bytes = whole_bytes or size_bytes
        print(
            f"  {name:16}{size_bytes / records:12.2f}{size_bytes / whole_bytes:10.1%}"
            f"{min(node_s) / records * 1e9:13.0f}{min(client_s) / records * 1e9:15.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = pa.Table.from_pylist(rows(options.batch), schema=row_layout(FLIGHTS).row_schema)
    node = RealNode(options.directory / "data")
    node.start()
    assert node.process is not None
    try:
        with sync.Client(f"127.0.0.1:{node.port}") as client:
            for codec in CODECS:
                topic = f"flights-{codec or 'none'}"
                client.create_topic(topic, schema=table.schema, key="carrier", time="scheduled")
                with client.producer(topic, compression=codec) as producer:
                    for _ in range(options.records // options.batch):
                        producer.send_arrow(table)
                measure(client, node.process.pid, topic, options.records, options.rounds)
    finally:
        node.stop()


if __name__ == "__main__":
    main()
