"""A node on a file system that really fills: a small tmpfs in its own mount namespace."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.broker.peer import batch, connected

from tidelog_proto import broker_pb2 as pb

pytestmark = pytest.mark.e2e

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
DISK = "16m"
REFUSED = 500
SCRIPT = f"""
set -e
mount -t tmpfs -o size={DISK} tmpfs "$1"
"$0" -m tidelog_cli node --data "$1/data" --port 0 --management-port 0
exec "$0" -m tidelog_cli log verify "$1/data" --json
"""
"""The node, and after a stop with 0 the result of the offline check of its files."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    try:
        subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace may be made here: {error}")
    command = [*NAMESPACE, "sh", "-c", SCRIPT, sys.executable, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
                child.kill()
            process.kill()


async def ready(management_port: int, wanted: tuple[int, str]) -> None:
    """Wait until `/readyz` returns this."""
    url = f"http://127.0.0.1:{management_port}/readyz"

    def said() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url) as reply:
                return reply.status, json.loads(reply.read())["status"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())["status"]

    async with asyncio.timeout(60):
        while await asyncio.to_thread(said) != wanted:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_a_full_disk_refuses_writes_keeps_records_and_recovers_with_free_space(
    node: subprocess.Popen[str],
) -> None:
    assert node.stdout is not None
    started = json.loads(node.stdout.readline())
    port = started["port"]
    await ready(started["management_port"], (200, "running"))
    async with connected(port) as peer:
        filler, kept = [(await peer.create(name)).topic_id for name in ("filler", "kept")]
        values: list[bytes] = []
        while True:
            values.append(os.urandom(100_000))
            (result,) = await peer.publish(filler, batch(values[-1]))
            if result.HasField("error"):
                break
        assert (result.error.code, result.error.retriable, result.error.definite) == (pb.DISK_FULL, True, True)
        await ready(started["management_port"], (503, "disk_full"))
        for _ in range(REFUSED):
            (result,) = await peer.publish(filler, batch(values[-1]))
            assert result.error.code == pb.DISK_FULL
        assert len(values) > 50
        assert await peer.read_all(filler) == values[:-1]
        (refused,) = await peer.publish(kept, batch(os.urandom(1_000_000)))
        assert refused.error.code == pb.DISK_FULL

        await peer.delete("filler")
        stored = pb.PublishResult(error=refused.error)
        while stored.HasField("error"):  # the files go in the background
            assert stored.error.code == pb.DISK_FULL
            (stored,) = await peer.publish(kept, batch(b"room again" * 10_000))
        assert stored.base_offset == 0
    (process,) = (child for child in psutil.Process(node.pid).children() if "node" in child.cmdline())
    process.terminate()
    said, errors = node.communicate(timeout=60)
    assert node.returncode == 0, errors
    assert "Traceback" not in errors
    lines = errors.splitlines()
    assert len([line for line in lines if "is full and publishes are refused" in line]) == 1, errors
    assert len(lines) < REFUSED / 10, f"{REFUSED} refusals had the node log {len(lines)} lines"
    segments = json.loads(said)
    assert all(segment["sound"] for segment in segments)
    assert [segment["records"] for segment in segments if segment["topic"] == "kept"] == [1]
