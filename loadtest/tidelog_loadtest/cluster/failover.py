"""`tidelog bench failover`: time until a partition accepts publishes again after its owner fails.

A round puts a paced load on a topic with three replicas. The owner of partition 0 is killed (`kill`: SIGKILL; the
kernel closes its sockets, so its peers notice at once) or stopped (`cut`: SIGSTOP; its sockets stay open without
traffic, which simulates a network partition without privileges). The benchmark measures the time from the signal to the
first acknowledgement of records appended after it, and to the time at which a survivor knows a new owner for every
partition of the failed node. Then the load stops, the acknowledged records are read from the survivors, the node
restarts, and the next round starts when all replicas are in sync and ownership is balanced.

At the end all records are read again from the beginning, when restarted nodes may own some partitions.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from rich.table import Table

from tidelog import Client
from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest.cluster.acknowledgement_ledger import Audit, Ledger, audit
from tidelog_loadtest.cluster.paced_load import Load
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.stand.cluster_stand import copies_on, own_cluster
from tidelog_loadtest.stand.cluster_view import View, balanced, settled, settled_everywhere, view_of
from tidelog_loadtest.stand.nodes import NodeProcess, Nodes
from tidelog_proto import broker_pb2 as pb

T = TypeVar("T")

Fault = Literal["kill", "cut"]

MEASURED: Final = 0
LOADED_PARTITIONS_MAX: Final = 4
TAKEOVER_S: Final = 60.0
"""Timeout for the first acknowledgement and for the new owners; the benchmark fails after it."""
LOAD_GOES_ON_S: Final = 0.5
_TOPIC: Final = "bench-failover"
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """The parameters of the benchmark.

    Attributes:
        records_per_s: rate of the load on each loaded partition.
        lead_s: duration of the load before the fault.
        data: directory for temporary files.
    """

    nodes: int = 3
    rounds: int = 20
    partitions: int = 1
    fault: Fault = "kill"
    flush: FlushName = "always"
    size_bytes: int = 100
    records_per_s: int = 10_000
    lead_s: float = 1.0
    data: Path | None = None

    @property
    def loaded(self) -> int:
        """The number of partitions with load; the other partitions only fail over."""
        return min(self.partitions, LOADED_PARTITIONS_MAX)


@dataclass(frozen=True, slots=True)
class Round:
    """One fault and its effects.

    Attributes:
        node_id: the failed node.
        owned: number of partitions that the failed node owned.
        first_ack_ms: time from the fault to the first acknowledgement of records appended after it.
        all_partitions_ms: time from the fault until a survivor knows a new owner for every partition.
        healed_s: time from the node's restart until replicas are in sync and ownership is balanced.
        sends_failed: number of failed sends.
        audit: comparison of the records read after the fault with the acknowledgements.
    """

    node_id: str
    owned: int
    first_ack_ms: float
    all_partitions_ms: float
    healed_s: float
    sends_failed: int
    audit: Audit


@dataclass(frozen=True, slots=True)
class FailoverResult:
    """All rounds, and the result of the final audit."""

    plan: FailoverPlan
    rounds: list[Round]
    whole: Audit

    @property
    def lost(self) -> int:
        """Acknowledged records missing at their offset in any audit."""
        return self.whole.lost + sum(each.audit.lost for each in self.rounds)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "benchmark": "failover",
            "fault": self.plan.fault,
            "flush": self.plan.flush,
            "nodes": self.plan.nodes,
            "partitions": self.plan.partitions,
            "loaded_partitions": self.plan.loaded,
            "load_records_per_s": self.plan.records_per_s * self.plan.loaded,
            "size_bytes": self.plan.size_bytes,
            "rounds": len(self.rounds),
            "first_ack_ms": _spread([each.first_ack_ms for each in self.rounds]),
            "all_partitions_ms": _spread([each.all_partitions_ms for each in self.rounds]),
            "healed_s": _spread([each.healed_s for each in self.rounds]),
            "sends_failed": sum(each.sends_failed for each in self.rounds),
            "records_acked": self.whole.acked,
            "records_read": self.whole.read,
            "records_lost": self.lost,
            "records_twice": self.whole.twice,
            "each_round": [asdict(each) for each in self.rounds],
            "environment": asdict(environment),
        }

    def table(self) -> Table:
        """Return the figures as a table."""
        plan = self.plan
        table = Table(
            title=f"failover ({plan.fault}), flush={plan.flush}: {plan.nodes} nodes, "
            f"{plan.partitions:,} partitions, {len(self.rounds)} rounds"
        )
        for heading in ("", "median", "worst"):
            table.add_column(heading, justify="right" if heading else "left")
        rows = {
            "first acknowledged publish, ms": [each.first_ack_ms for each in self.rounds],
            "all partitions have owners, ms": [each.all_partitions_ms for each in self.rounds],
            "replicas in sync and balanced, s": [each.healed_s for each in self.rounds],
        }
        for name, values in rows.items():
            spread = _spread(values)
            table.add_row(name, f"{spread['median']:,.1f}", f"{spread['worst']:,.1f}")
        table.caption = (
            f"{self.whole.acked:,} records acknowledged, {self.lost:,} lost, {self.whole.twice:,} duplicated; "
            f"{sum(each.sends_failed for each in self.rounds)} sends failed"
        )
        return table


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "worst": round(max(values), 3)}


async def failover(plan: FailoverPlan, tell: Tell = say_nothing) -> FailoverResult:
    """Run the rounds on a cluster of their own.

    Args:
        plan: the parameters.
        tell: progress callback; each round is one step.

    Raises:
        CommandFailed: a node did not start, no node took over, or replicas did not get back in sync.
        TidelogError: the cluster rejected a request.
    """
    async with (
        own_cluster(plan.nodes, plan.data) as nodes,
        Client(nodes.bootstrap, client_id="tidelog-bench") as client,
    ):
        await client.create_topic(
            _TOPIC, partitions=plan.partitions, flush=plan.flush, replication_factor=copies_on(plan.nodes)
        )
        run = _Rounds(plan, nodes, client, tell)
        addresses = [node.address for node in nodes.by_id.values()]
        await settled_everywhere(addresses, _TOPIC, copies=copies_on(plan.nodes), partitions=plan.partitions)
        rounds = [await run.one(number) for number in range(plan.rounds)]
        tell("reading all records again", plan.rounds)
        whole, _ = await audit(client, _TOPIC, run.ledger, dict.fromkeys(range(plan.loaded), 0))
    return FailoverResult(plan, rounds, whole)


class _Rounds:
    """State shared by the rounds: the cluster, the client, and the end offset read in each partition."""

    def __init__(self, plan: FailoverPlan, nodes: Nodes, client: Client, tell: Tell) -> None:
        self.ledger = Ledger(plan.size_bytes)
        self._plan = plan
        self._nodes = nodes
        self._client = client
        self._tell = tell
        self._read_to = dict.fromkeys(range(plan.loaded), 0)

    async def one(self, number: int) -> Round:
        """Run round `number`, counted from 0; all replicas are in sync before and after it."""
        self._tell(f"round {number + 1}: load before the fault", number)
        load = Load(
            self._client, _TOPIC, self.ledger, partitions=self._plan.loaded, records_per_s=self._plan.records_per_s
        )
        async with load:
            await self._within(load, load.first_ack(MEASURED, 0))
            await asyncio.sleep(self._plan.lead_s)
            owner, owned = await self._owner()
            survivor = self._nodes.others(owner.node_id)[0].address
            self._tell(f"round {number + 1}: {self._plan.fault} {owner.node_id} under load", number)
            async with view_of(survivor) as view:
                began_ns = time.perf_counter_ns()
                await self._harm(owner)
                appended_after_us = time.time_ns() // 1_000
                acked_ns, moved_ns = await self._within(
                    load,
                    asyncio.gather(load.first_ack(MEASURED, appended_after_us), _all_moved(view, owner.node_id)),
                )
            await asyncio.sleep(LOAD_GOES_ON_S)
        self._tell(f"round {number + 1}: reading back", number)
        counts, self._read_to = await audit(self._client, _TOPIC, self.ledger, self._read_to)
        self._tell(f"round {number + 1}: {owner.node_id} restarts", number)
        healing_ns = time.perf_counter_ns()
        await self._mend(owner)
        async with view_of(survivor) as view:
            await self.heal(view)
        return Round(
            node_id=owner.node_id,
            owned=owned,
            first_ack_ms=(acked_ns - began_ns) / _NS_PER_MS,
            all_partitions_ms=(moved_ns - began_ns) / _NS_PER_MS,
            healed_s=(time.perf_counter_ns() - healing_ns) / 1e9,
            sends_failed=load.failed,
            audit=counts,
        )

    async def heal(self, view: View) -> None:
        """Wait until every replica is in sync and ownership matches the placement."""
        copies, partitions = copies_on(self._plan.nodes), self._plan.partitions
        await settled(view, _TOPIC, copies=copies, partitions=partitions)
        await balanced(view, partitions=partitions)
        await settled(view, _TOPIC, copies=copies, partitions=partitions)

    async def _owner(self) -> tuple[NodeProcess, int]:
        """Return the owner of the measured partition, by the newest epoch, and the number of partitions that it owns.

        Call it right before the fault: a cluster that just recovered may still move a partition.
        """
        reported: list[pb.PartitionInfo] = []
        for node in self._nodes.by_id.values():
            async with view_of(node.address) as view:
                reported += (await view.routes(_TOPIC)).partitions
        owners = newest_owners(reported)
        return self._nodes.by_id[owners[MEASURED]], list(owners.values()).count(owners[MEASURED])

    async def _harm(self, node: NodeProcess) -> None:
        await (node.kill() if self._plan.fault == "kill" else node.pause())

    async def _mend(self, node: NodeProcess) -> None:
        if self._plan.fault == "kill":
            await node.start()
        else:
            node.resume()

    async def _within(self, load: Load, awaited: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(TAKEOVER_S):
                return await awaited
        except TimeoutError:
            raise CommandFailed(
                f"the cluster did not recover within {TAKEOVER_S:.0f} s: no publish was acknowledged, or a partition "
                f"got no new owner ({load.failed} publishes failed; last error: {load.last_error or 'none'})"
            ) from None


def newest_owners(reported: Iterable[pb.PartitionInfo]) -> dict[int, str]:
    """Return the owner of each partition by the newest epoch that any node reports."""
    newest = {info.partition: info for info in sorted(reported, key=lambda info: info.epoch)}
    return {partition: info.owner for partition, info in newest.items()}


async def _all_moved(survivor: View, gone: str) -> int:
    """Return the time (perf_counter_ns) at which a survivor first knows another owner for every partition."""
    while True:
        asked_ns = time.perf_counter_ns()
        partitions = (await survivor.routes(_TOPIC)).partitions
        now_ns = time.perf_counter_ns()
        if all(partition.owner not in ("", gone) for partition in partitions):
            return now_ns
        # The response for 1,000 partitions is large: poll rarely, so that polling does not load the survivor.
        await asyncio.sleep(max(0.01, 4 * (now_ns - asked_ns) / 1e9))
