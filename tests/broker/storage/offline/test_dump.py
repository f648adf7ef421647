"""`tidelog log dump` of typed partitions of a real node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.clients.test_real_node import RealNode

from tidelog import Client
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_file import schemas_in, schemas_line

AT = datetime(2026, 12, 1, 12, tzinfo=UTC)


def tidelog(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog_cli", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


async def published(client: Client) -> None:
    fields = ["k string required", "n int32", "at timestamp[us, UTC]", "ratio float64"]
    await client.create_topic("rows", schema=fields, key="k")
    await client.create_topic("bytes")
    async with client.producer("rows", compression="lz4") as producer:
        await producer.send_many([{"k": f"k{n}", "n": n, "at": AT, "ratio": float("nan")} for n in range(1500)])
        await producer.delete(k="k3")
    await client.evolve_schema("rows", rename={"n": "number"}, widen={"n": "int64"})
    async with client.producer("rows") as producer:
        await producer.send({"k": "z", "number": 2**40}, headers=[("h", b"1")])
    async with client.producer("bytes") as producer:
        await producer.send(b"plain")


@pytest.mark.e2e
async def test_typed_partitions_are_dumped_as_json(tmp_path: Path) -> None:
    node = RealNode(tmp_path / "data")
    node.start()
    try:
        async with Client(f"127.0.0.1:{node.port}") as client:
            await published(client)
        shown = tidelog(
            "topic", "schema", "show", "rows", "--all", "--as", "file", "--bootstrap", f"127.0.0.1:{node.port}"
        )
        assert shown.returncode == 0, shown.stderr
        for wrong in (["--all"], ["--as", "file"], ["--all", "--as", "file", "--number", "1"]):
            refused = tidelog("topic", "schema", "show", "rows", *wrong, "--bootstrap", f"127.0.0.1:{node.port}")
            assert (refused.returncode, "belong together" in refused.stderr) == (2, True)
    finally:
        node.stop()
    schemas = tmp_path / "schemas.jsonl"
    schemas.write_text(shown.stdout)
    dumped = tidelog("log", "dump", str(tmp_path / "data"))
    assert dumped.returncode == 0, dumped.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in dumped.stdout.splitlines()]
    rows = [line for line in lines if line["topic"] == "rows"]
    assert [line["offset"] for line in rows] == list(range(1502))
    assert rows[7]["value"] == {"k": "k7", "number": 7, "at": "2026-12-01T12:00:00Z", "ratio": "NaN"}
    assert rows[1500]["value"] is None
    assert rows[1501]["value"] == {"k": "z", "number": 2**40, "at": None, "ratio": None}
    assert [line["value"] for line in lines if line["topic"] == "bytes"] == ["plain"]
    (partition,) = (tmp_path / "data" / "partitions").glob("rows.*-0")
    some = tidelog("log", "dump", str(partition), "--from", "1200", "--max", "2")
    assert [json.loads(line)["value"]["number"] for line in some.stdout.splitlines()] == [1200, 1201]
    alone = tmp_path / "alone" / partition.name
    shutil.copytree(partition, alone)
    unknown = tidelog("log", "dump", str(alone))
    assert unknown.returncode != 0
    assert "tidelog topic schema show rows --all --as file" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    given = tidelog("log", "dump", str(alone), "--schemas", str(schemas))
    assert given.returncode == 0, given.stderr
    assert [json.loads(line) for line in given.stdout.splitlines()] == rows
    schemas.write_text("{}")
    refused = tidelog("log", "dump", str(alone), "--schemas", str(schemas))
    assert (refused.returncode, "line 1 is not the schemas of a topic" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "text", ["x", "[]", "{}", '{"topic_id": "0", "schemas": []}', '{"topic_id": "00", "schemas": ["AA"]}', "[" * 10**5]
)
def test_lines_that_are_not_schemas_are_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="line 2 is not the schemas of a topic"):
        schemas_in("\n" + text)


def test_lines_of_a_topic_are_joined() -> None:
    assert schemas_in("") == {}
    assert schemas_in(schemas_line("t", b"\1" * 16, []) + "\n") == {b"\1" * 16: []}
