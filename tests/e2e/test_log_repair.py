"""A single node with a damaged log: records before the damage are served, and an operator truncates the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.test_crash import end, ready, start
from typer.testing import CliRunner

from tidelog import Client
from tidelog_broker.cli.log_commands import log_app

pytestmark = pytest.mark.e2e


def log(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(log_app, arguments)
    return result.exit_code, result.output


async def send(client: Client, value: bytes) -> None:
    async with client.producer("t") as producer:
        await producer.send(value)


@contextmanager
def running(data: Path) -> Iterator[str]:
    """Run a node on a data directory; where it listens."""
    process = start(data)
    try:
        told = ready(process)
        yield f"127.0.0.1:{told['port']}"
    finally:
        end(process)


@pytest.mark.long
async def test_a_damaged_log_is_truncated_and_continues(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as address:
        async with Client(address) as client:
            await client.create_topic("t")
            for value in (b"first", b"second", b"third"):
                await send(client, value)
        code, said = log("repair", str(data))
        assert (code, "is in use by process" in said) == (2, True)
    assert log("repair", str(data)) == (0, "no log is damaged\n")

    (segment,) = (data / "partitions").glob("t.*/*/*.seg")
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"second")] ^= 1
    segment.write_bytes(raw)
    with running(data) as address:
        async with Client(address) as client:
            assert (await client.topic("t")).partitions[0].state == "limbo"

    code, said = log("repair", str(data))
    assert (code, "can be truncated at offset 1" in said, "--yes" in said) == (1, True, True), said
    code, said = log("repair", str(data), "--yes")
    assert (code, "truncated at offset 1" in said) == (0, True), said
    (kept,) = (data / "partitions").glob("t.*/*.bad-1")
    assert str(kept) in said
    assert log("verify", str(data))[0] == 0
    assert '"offset": 0' in log("dump", str(kept))[1], "nothing is thrown away"

    with running(data) as address:
        async with Client(address) as client:
            await send(client, b"fourth")
            fetched = await client.fetch("t", 0, 0)
            assert [value for one in fetched.batches for value in one.values()] == [b"first", b"fourth"]
    assert log("repair", str(data)) == (0, "no log is damaged\n")


def test_a_path_that_is_not_a_data_directory_is_refused(tmp_path: Path) -> None:
    code, said = log("repair", str(tmp_path))
    assert code == 2
    assert "is not the data directory of a node" in said
    assert not list(tmp_path.iterdir()), "no directory was created"
