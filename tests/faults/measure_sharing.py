"""Measures how a large group bears that a member leaves, and that its coordinator is killed.

    python -m tests.faults.measure_sharing [--members 100] [--clients 10] [--partitions 1000] [--rounds 3]

Three nodes in processes of their own; all members and publishers in this one, so that there is one clock, and
processor time of others counts as the group's. A record has its time of sending: the length of a pause for a reader
is the age of the records that it gets. Each round publishes to some partitions of members that stay, for a while
with nothing else going on and for as long while one member leaves; then it joins again. In the end the node that
coordinates is killed, and a member has recovered when it has committed a record that was sent after that.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog import Client, Consumer, Group, Producer, TopicPartition
from tidelog.errors import TidelogError
from tidelog_loadtest.measure.footprint import cpu_s
from tidelog_loadtest.stand.cluster_stand import own_cluster
from tidelog_loadtest.stand.nodes import Nodes

TOPIC: Final = "shared"
GROUP: Final = "measured"
NODES: Final = 3
PROBED: Final = 10
"""Members that are looked at while another one leaves."""
LEAVE_RATE: Final = 10
BEFORE_RATE: Final = 0.5
KILL_RATE: Final = 2
"""Records a second, each probed partition: with the members' commits less than the machine can do, see `busy`."""
QUIET: Final = 0.5
"""Maximum of busy processors before measuring, so that the work after the joins has ended."""
QUIET_WITHIN_S: Final = 30
LOOK_S: Final = 4.0
WAIT_S: Final = 90.0
COMMIT_EVERY_S: Final = 2.0
COMMITS_SHOW_S: Final = 0.05
_SENT_AT: Final = struct.Struct(">d")


@dataclass(slots=True)
class Member:
    """A member and its observations."""

    name: str
    client: Client
    held: set[TopicPartition] = field(default_factory=set[TopicPartition])
    told: list[tuple[float, str, frozenset[TopicPartition]]] = field(default_factory=list)
    ages: list[tuple[float, float]] = field(default_factory=list)
    """When a batch was handed out, and how old its oldest record was then."""
    committed: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    handed_at: dict[float, float] = field(default_factory=dict[float, float])
    """Moment -> when a record was handed out that was sent after it."""
    proven_at: dict[float, float] = field(default_factory=dict[float, float])
    """Moment -> when a commit was acknowledged of a record that was sent after it."""
    again: int = 0
    """Records handed to a member that it, or their previous owner, had already committed."""
    complaints: int = 0
    consumer: Consumer | None = None

    def join(self, positions: dict[TopicPartition, int], moments: list[float]) -> asyncio.Task[None]:
        """Be a member until the consumer is closed."""
        self.consumer = self.client.consumer(TOPIC, group=self._group())
        return asyncio.create_task(self._read(self.consumer, positions, moments))

    async def leave(self) -> None:
        assert self.consumer is not None
        await self.consumer.close()

    def _group(self) -> Group:
        def note(what: str, partitions: frozenset[TopicPartition]) -> None:
            self.told.append((time.monotonic(), what, partitions))
            self.held = self.held | partitions if what == "assigned" else self.held - partitions

        return Group(
            GROUP,
            commit="manual",
            on_assigned=lambda partitions: note("assigned", partitions),
            on_revoked=lambda partitions: note("revoked", partitions),
            on_lost=lambda partitions: note("lost", partitions),
        )

    async def _read(self, consumer: Consumer, positions: dict[TopicPartition, int], moments: list[float]) -> None:
        committed_at = 0.0
        async for batch in consumer.batches():
            now = time.monotonic()
            where = TopicPartition(batch.topic, batch.partition)
            sent = [_SENT_AT.unpack(value)[0] for value in batch.batch.values() if value is not None]
            self.ages.append((now, now - sent[0]))
            self.again += sum(offset < positions.get(where, 0) for offset in batch.batch.offset_list())
            waited_for = moments and moments[-1] not in self.proven_at and sent[-1] > moments[-1]
            if waited_for:
                self.handed_at.setdefault(moments[-1], now)
            if not waited_for and now - committed_at < COMMIT_EVERY_S:
                continue
            try:
                held = await consumer.commit()
            except TidelogError:
                self.complaints += 1
                continue
            committed_at = time.monotonic()
            for each, answer in held.items():
                positions[each] = max(positions.get(each, 0), answer.next_offset)
            if waited_for and where in held:
                self.proven_at[moments[-1]] = committed_at


class Publishing:
    """Publishes to some partitions at a pace, one record a partition and turn, while entered."""

    def __init__(self, producer: Producer, places: Iterable[TopicPartition], rate: float) -> None:
        self._producer = producer
        self._places = list(places)
        self._pause_s = 1 / rate / max(1, len(self._places))
        self._sending: set[asyncio.Task[object]] = set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, *self._sending, return_exceptions=True)

    async def _run(self) -> None:
        began, count = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - began) / self._pause_s)
            for number in range(count, due):
                place = self._places[number % len(self._places)]
                sending = self._producer.send(_SENT_AT.pack(time.monotonic()), partition=place.partition)
                task: asyncio.Task[object] = asyncio.ensure_future(sending)
                self._sending.add(task)
                task.add_done_callback(self._sent)
            count = max(count, due)
            await asyncio.sleep(min(self._pause_s, 0.02))

    def _sent(self, task: asyncio.Task[object]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and task.exception() is not None:
            print(f"a record was not published: {task.exception()!r}", file=sys.stderr)


@dataclass(slots=True)
class Stand:
    """The group on its cluster."""

    nodes: Nodes
    client: Client
    members: Sequence[Member]
    producer: Producer
    partitions: int
    positions: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    moments: list[float] = field(default_factory=list[float])
    reading: list[asyncio.Task[None]] = field(default_factory=list)

    def join(self, member: Member) -> None:
        self.reading.append(member.join(self.positions, self.moments))

    async def settled(self, members: Sequence[Member]) -> float:
        """Wait until some members hold everything, evenly; return when."""
        least = self.partitions // len(members)
        deadline = time.monotonic() + WAIT_S
        while sum(len(member.held) for member in members) < self.partitions or any(
            len(member.held) < least for member in members
        ):
            for task in self.reading:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise RuntimeError("a member failed") from task.exception()
            if time.monotonic() > deadline:
                have = sorted(len(member.held) for member in members)
                raise RuntimeError(f"the group was not settled after {WAIT_S:.0f} s: {have}")
            await asyncio.sleep(0.02)
        return time.monotonic()


def oldest_ms(members: Iterable[Member], since: float, until: float) -> float:
    """Return the age of the oldest record that a member got in a time range, in ms."""
    return 1000 * max((age for member in members for at, age in member.ages if since <= at < until), default=0.0)


def row(what: str, value: str) -> None:
    print(f"{what:<72}{value:>16}", flush=True)


def probes(members: Iterable[Member]) -> list[TopicPartition]:
    return [min(member.held) for member in members]


def processor_s(nodes: Nodes) -> float:
    """Return the processor time used by the nodes and this process so far, in s."""
    return time.process_time() + sum(cpu_s(pid) for pid in nodes.pids.values())


async def busy(nodes: Nodes, seconds: float) -> float:
    """Wait; return how many processors the nodes and this process kept busy meanwhile.

    If that is near to the machine's capacity, ages and times measure the machine, not the group.
    """
    began, used = time.monotonic(), processor_s(nodes)
    await asyncio.sleep(seconds)
    return (processor_s(nodes) - used) / (time.monotonic() - began)


async def until_quiet(nodes: Nodes) -> None:
    """Wait until the load is low, or a timeout."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    while await busy(nodes, 1) > QUIET and time.monotonic() < deadline:
        pass


@dataclass(slots=True)
class Left:
    """Results of members leaving, one entry a round. Times in s, ages in ms, processors busy in processors."""

    took: list[float] = field(default_factory=list[float])
    quiet: list[float] = field(default_factory=list[float])
    leaving: list[float] = field(default_factory=list[float])
    used: list[float] = field(default_factory=list[float])
    theirs: int = 0
    """Partitions of those that left, all rounds together."""
    moved: int = 0
    """Those of them that others were given."""
    others: int = 0
    """Partitions of those that stayed that were given or taken away."""

    def show(self) -> None:
        """Print it."""
        row("a member leaves: until others have its partitions, s (median, most)", _two(self.took, 2))
        row("its partitions that moved, all rounds together", f"{self.moved}")
        row("partitions of others that moved or were taken away", f"{self.others}")
        row("processors busy, nothing going on (median, most)", _two(self.used, 2))
        row("oldest record handed out, nothing going on, ms (median, most)", _two(self.quiet, 0))
        row("oldest record handed out to staying members, one leaves, ms", _two(self.leaving, 0))


async def measure_leaving(stand: Stand, rounds: int, look_s: float) -> Left:
    """Let one member after the other leave and join again; look for `look_s` each before and after it leaves."""
    left = Left()
    for number in range(rounds):
        leaver = stand.members[number % len(stand.members)]
        stay = [member for member in stand.members if member is not leaver]
        probed = stay[:: max(1, len(stay) // PROBED)][:PROBED]
        theirs = set(leaver.held)
        left.theirs += len(theirs)
        await until_quiet(stand.nodes)
        async with Publishing(stand.producer, probes(probed), LEAVE_RATE):
            await asyncio.sleep(1)
            since = time.monotonic()
            left.used.append(await busy(stand.nodes, look_s))
            began = time.monotonic()
            left.quiet.append(oldest_ms(probed, since, began))
            await leaver.leave()
            left.took.append(await stand.settled(stay) - began)
            await asyncio.sleep(max(0.0, look_s - (time.monotonic() - began)))
            keeping = [
                member
                for member in probed
                if not any(at >= began and what != "assigned" for at, what, _ in member.told)
            ]
            left.leaving.append(oldest_ms(keeping, began, began + look_s))
        for member in stay:
            for at, what, partitions in member.told:
                left.moved += len(partitions & theirs) if at >= began and what == "assigned" else 0
                left.others += len(partitions - theirs) if at >= began else 0
        stand.join(leaver)
        await stand.settled(stand.members)
    return left


def _two(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f}, {max(values):.{digits}f}" if values else "-"


@dataclass(slots=True)
class Killed:
    """Results of the members after their coordinator was killed. Times in s after that."""

    members: int
    used: float
    handed: list[float]
    """Wait until each surviving member got a record that was sent after that."""
    proven: list[float]
    """Wait until each surviving member has committed such a record."""
    lost: int
    changed: int
    again: int
    """Records that were handed out although they had been committed."""
    failed: int

    def show(self) -> None:
        """Print it."""
        row("processors busy before the coordinator is killed", f"{self.used:.2f}")
        row("the coordinator is killed: surviving members", f"{len(self.proven)} of {self.members}")
        row("until a member gets a record sent after it, s (median, most)", _two(self.handed, 2))
        row("until a member has committed a record sent after it, s (median, most)", _two(self.proven, 2))
        row("members that lost partitions; changes of assignments", f"{self.lost}; {self.changed}")
        row("committed and handed out again, records", f"{self.again}")
        row("commits that failed, all in all", f"{self.failed}")


async def measure_killing(stand: Stand, look_s: float) -> Killed:
    """Kill the coordinator, and wait until all members have recovered, or `WAIT_S`."""
    coordinator = (await stand.client.groups.describe(GROUP)).coordinator
    assert coordinator is not None
    again = sum(member.again for member in stand.members)
    probed = probes(stand.members)
    await until_quiet(stand.nodes)
    async with Publishing(stand.producer, probed, BEFORE_RATE):
        used = await busy(stand.nodes, look_s)
    async with Publishing(stand.producer, probed, KILL_RATE):
        began = time.monotonic()
        stand.moments.append(began)
        await stand.nodes.by_id[coordinator].kill()
        deadline = began + WAIT_S
        while any(began not in member.proven_at for member in stand.members) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(COMMITS_SHOW_S)
        await asyncio.sleep(look_s / 2)  # repeated records arrive soon after
    told = [what for member in stand.members for at, what, _ in member.told if at >= began]
    return Killed(
        members=len(stand.members),
        used=used,
        handed=[member.handed_at[began] - began for member in stand.members if began in member.handed_at],
        proven=[member.proven_at[began] - began for member in stand.members if began in member.proven_at],
        lost=told.count("lost"),
        changed=len(told),
        again=sum(member.again for member in stand.members) - again,
        failed=sum(member.complaints for member in stand.members),
    )


async def measure(
    members: int, clients: int, partitions: int, rounds: int, *, look_s: float = LOOK_S
) -> tuple[Left, Killed]:
    """Run all measurements, print each result, and return all."""
    async with own_cluster(NODES, None) as nodes:
        client = Client(nodes.bootstrap, request_timeout_s=60)
        used = [Client(nodes.bootstrap, client_id=f"measured-{number}") for number in range(clients)]
        try:
            await client.create_topic(TOPIC, partitions=partitions, replication_factor=NODES)
            all_members = [Member(f"m{number}", used[number % clients]) for number in range(members)]
            producer = client.producer(TOPIC)
            stand = Stand(nodes, client, all_members, producer, partitions)
            began, began_cpu = time.monotonic(), time.process_time()
            for member in all_members:
                stand.join(member)
            took = await stand.settled(all_members) - began
            row(
                f"{members} members of {clients} clients have joined and share {partitions:,} partitions, s",
                f"{took:.2f}",
            )
            row("processor time that took in their process, s", f"{time.process_time() - began_cpu:.2f}")
            left = await measure_leaving(stand, rounds, look_s)
            left.show()
            killed = await measure_killing(stand, look_s)
            killed.show()
            for member in all_members:
                if member.consumer is not None:
                    await member.consumer.abort()
            await asyncio.gather(*stand.reading, return_exceptions=True)
            return left, killed
        finally:
            for each in [*used, client]:
                await each.abort()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how a large group bears leaving and a lost coordinator.")
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="how often a member leaves")
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # clients log errors of the killed node
    asyncio.run(measure(given.members, given.clients, given.partitions, given.rounds))


if __name__ == "__main__":
    main()
