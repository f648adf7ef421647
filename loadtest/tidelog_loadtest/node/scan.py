"""A scan of a topic in full segments, alternating between mappings, files and the limit probe.

For each run a node is started on the same directory, with one value of `segment_read` or the other, so all runs read
the same files, and the node's own caches are empty. With `cold`, the files are dropped from the page cache first
(POSIX_FADV_DONTNEED), which works only for pages that no process maps; the caches of a virtual machine's host are not
affected. Otherwise each run first reads the topic once unmeasured.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final, Literal

from tidelog import Client
from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.measure import product
from tidelog_loadtest.measure.footprint import Watch
from tidelog_loadtest.measure.results import Result, Side
from tidelog_loadtest.measure.runs import Budget, Run
from tidelog_loadtest.node.records import READ_BYTES, Plan
from tidelog_loadtest.probe import client as probe_client
from tidelog_loadtest.probe.wire import aligned
from tidelog_loadtest.stand.payloads import encoded, value_batches
from tidelog_loadtest.stand.single_node import Stand, stand
from tidelog_proto.limits import MIB

ReadName = Literal["mapped", "file"]
READS: Final[tuple[ReadName, ...]] = ("mapped", "file")
SEGMENT_BYTES: Final = 64 * MIB
_NOBODY: Final = "127.0.0.1:1"
"""Placeholder for the node's address in the stand, because this module starts the nodes."""


async def scan(plan: Plan, *, cold: bool) -> list[Result]:
    """Measure reading a topic from its beginning, a result for each of `READS`.

    Raises:
        CommandFailed: a child process did not start.
        TidelogError: the node rejected a request.
        WrongCountError: more records were read than stored.
    """
    batches = value_batches(plan.size_bytes, plan.batch_records)
    payloads = encoded(batches)
    batch_bytes = payloads[0].length_bytes
    read_bytes = max(1, READ_BYTES // aligned(batch_bytes)) * aligned(batch_bytes)
    sides = {read: Side([], []) for read in READS}
    limit = Side([], [])
    async with stand(
        data=plan.data, bootstrap=_NOBODY, sync=False, payload_bytes=batch_bytes, window=plan.window
    ) as where:
        async with _node(where, "file") as (_, client):
            await client.create_topic("scan", partitions=1, flush="never", segment_bytes=SEGMENT_BYTES)
            budget = plan.budget(plan.batch_records)
            stored = await product.produce_run(client, "scan", batches, batch_bytes, budget, window=plan.window)
        await probe_client.append_run(where.probe_port, payloads, Budget(batches=stored.batches), window=plan.window)
        for _ in range(plan.rounds):
            for read in READS:
                await _product_round(where, read, stored, sides[read], cold=cold)
            if cold:
                _forget(where.directory / "probe")
            else:
                await probe_client.read_run(where.probe_port, read_bytes=read_bytes)
            async with Watch(where.probe_pids) as watch:
                limit.runs.append(await probe_client.read_run(where.probe_port, read_bytes=read_bytes))
            limit.watches.append(watch)
    state = "cold" if cold else "warm"
    return [
        Result(f"scan, {state}, {read}", "never", plan.size_bytes, plan.batch_records, sides[read], limit, 0.0)
        for read in READS
    ]


async def _product_round(where: Stand, read: ReadName, stored: Run, side: Side, *, cold: bool) -> None:
    async with _node(where, read) as (node, client):
        if cold:
            _forget(where.directory / "node")
        else:
            await product.consume_run(client, "scan", stored.records)
        async with Watch({"client": os.getpid(), "node": node.process.pid}) as watch:
            side.runs.append(await product.consume_run(client, "scan", stored.records))
        side.watches.append(watch)


@contextlib.asynccontextmanager
async def _node(where: Stand, read: ReadName) -> AsyncIterator[tuple[Child, Client]]:
    """Run the node on its directory with a value of `segment_read`."""
    config = where.directory / f"{read}.toml"
    config.write_text(f'[node]\nsegment_read = "{read}"\n')
    arguments = ("node", "--config", str(config), "--data", str(where.directory / "node"))
    with (where.directory / "node.log").open("ab") as log:
        async with (
            running("node", (*arguments, "--port", "0", "--management-port", "0"), log=log) as node,
            Client(f"127.0.0.1:{node.ready['port']}", client_id="tidelog-bench") as client,
        ):
            yield node, client


def _forget(directory: Path) -> None:
    """Drop all files below a directory from the page cache."""
    for path in _files(directory):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _files(directory: Path) -> Iterable[Path]:
    return (path for path in directory.rglob("*") if path.is_file())
