"""`tidelog bench failover`: how long a partition cannot be published to when its owner goes away.

A round: a paced load on a topic of three copies; the owner of partition 0 is killed (`kill`: SIGKILL, its sockets are
closed by the kernel, so the others are told) or stopped (`cut`: SIGSTOP, its sockets stand and nothing comes out of
them: the simple form of a network cut that needs no privileges). Measured is the time from the signal to the first
acknowledgement of records that were appended after it, and to the moment at which a survivor knows a new owner for
every partition that the node had. Then the load ends, what it was promised is read back from the survivors alone, the
node comes back, and the next round waits until all copies are up to date and ownership is spread again.

At the end everything is read once more from its beginning: a node that came back may own some of it by then.
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
"""After this long without an acknowledgement the benchmark gives up."""
LOAD_GOES_ON_S: Final = 0.5
_TOPIC: Final = "bench-failover"
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """What to do. `lead_s` is how long the load runs before the fault; `records_per_s` is for each loaded partition."""

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
        """How many partitions get records; the others are there to be taken over."""
        return min(self.partitions, LOADED_PARTITIONS_MAX)


@dataclass(frozen=True, slots=True)
class Round:
    """One fault. Times run from the signal; `owned` counts the partitions that the node had."""

    node_id: str
    owned: int
    first_ack_ms: float
    all_partitions_ms: float
    healed_s: float
    sends_failed: int
    audit: Audit


@dataclass(frozen=True, slots=True)
class FailoverResult:
    """All rounds, and what the last look at everything found."""

    plan: FailoverPlan
    rounds: list[Round]
    whole: Audit

    @property
    def lost(self) -> int:
        """Acknowledged records that were not where they should be, in any look."""
        return self.whole.lost + sum(each.audit.lost for each in self.rounds)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return what --json prints."""
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
        """Return the figures for people."""
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
            "whole and balanced again, s": [each.healed_s for each in self.rounds],
        }
        for name, values in rows.items():
            spread = _spread(values)
            table.add_row(name, f"{spread['median']:,.1f}", f"{spread['worst']:,.1f}")
        table.caption = (
            f"{self.whole.acked:,} records acknowledged, {self.lost:,} lost, {self.whole.twice:,} twice; "
            f"{sum(each.sends_failed for each in self.rounds)} sends failed"
        )
        return table


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "worst": round(max(values), 3)}


async def failover(plan: FailoverPlan, tell: Tell = say_nothing) -> FailoverResult:
    """Run the rounds on a cluster of their own.

    Args:
        plan: what to do.
        tell: is told what each round is at; a round is a step.

    Raises:
        CommandFailed: a node did not start, nobody took over, or the cluster did not become whole again.
        TidelogError: the cluster refused something.
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
        tell("reading everything once more", plan.rounds)
        whole, _ = await audit(client, _TOPIC, run.ledger, dict.fromkeys(range(plan.loaded), 0))
    return FailoverResult(plan, rounds, whole)


class _Rounds:
    """What the rounds share: the cluster, the client, and how far each partition was read."""

    def __init__(self, plan: FailoverPlan, nodes: Nodes, client: Client, tell: Tell) -> None:
        self.ledger = Ledger(plan.size_bytes)
        self._plan = plan
        self._nodes = nodes
        self._client = client
        self._tell = tell
        self._read_to = dict.fromkeys(range(plan.loaded), 0)

    async def one(self, number: int) -> Round:
        """Do round `number`, counted from 0; the cluster is whole before and after it."""
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
        found, self._read_to = await audit(self._client, _TOPIC, self.ledger, self._read_to)
        self._tell(f"round {number + 1}: {owner.node_id} comes back", number)
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
            audit=found,
        )

    async def heal(self, view: View) -> None:
        """Wait until every copy is up to date and ownership is where placement wants it."""
        copies, partitions = copies_on(self._plan.nodes), self._plan.partitions
        await settled(view, _TOPIC, copies=copies, partitions=partitions)
        await balanced(view, partitions=partitions)
        await settled(view, _TOPIC, copies=copies, partitions=partitions)

    async def _owner(self) -> tuple[NodeProcess, int]:
        """Return the owner of the measured partition, and how many partitions it owns: the word of the newest epoch.

        It is asked for right before the fault: a cluster that was just healed may still give a partition back.
        """
        told: list[pb.PartitionInfo] = []
        for node in self._nodes.by_id.values():
            async with view_of(node.address) as view:
                told += (await view.routes(_TOPIC)).partitions
        owners = newest_owners(told)
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
                f"no publish was acknowledged, or a partition had no owner, for {TAKEOVER_S:.0f} s "
                f"({load.failed} sends failed: {load.last_error or 'none yet'})"
            ) from None


def newest_owners(told: Iterable[pb.PartitionInfo]) -> dict[int, str]:
    """Return the owner of each partition by the newest epoch that anybody has told of it."""
    newest = {info.partition: info for info in sorted(told, key=lambda info: info.epoch)}
    return {partition: info.owner for partition, info in newest.items()}


async def _all_moved(survivor: View, gone: str) -> int:
    """Return when (perf_counter_ns) a survivor first knows another owner for every partition."""
    while True:
        asked_ns = time.perf_counter_ns()
        partitions = (await survivor.routes(_TOPIC)).partitions
        now_ns = time.perf_counter_ns()
        if all(partition.owner not in ("", gone) for partition in partitions):
            return now_ns
        # A thousand partitions are a large answer: asking must not become what the survivor is busy with.
        await asyncio.sleep(max(0.01, 4 * (now_ns - asked_ns) / 1e9))
