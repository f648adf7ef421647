"""Admission of founders and joiners with new, wiped or late directories, as real nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.founded import Founded

from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.node import cluster_membership, directory_admission
from tidelog_broker.node.directory_admission import IdentityError
from tidelog_broker.node.node import Node
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class Starts:
    """Founders that are being started, each in a task of its own, since they may wait for ever."""

    def __init__(self, founded: Founded, caplog: pytest.LogCaptureFixture) -> None:
        self.founded = founded
        self._caplog = caplog
        self._tasks: dict[str, asyncio.Task[Node]] = {}

    def begin(self, *names: str) -> None:
        for name in names:
            self._tasks[name] = asyncio.create_task(self.founded.start(name))

    async def admitted(self, *names: str) -> set[str]:
        """Return the admitted nodes, as soon as each one was admitted or has logged the nodes it waits for."""
        self._caplog.clear()
        await self.founded.until(
            lambda: all(self._tasks[name].done() or f"'{name}' waits for" in self._caplog.text for name in names),
            "a node neither starts nor logs the nodes it waits for",
        )
        return {name for name in names if self._tasks[name].done() and self._tasks[name].exception() is None}

    async def ended(self, name: str) -> BaseException | None:
        """Wait until a start has ended; return the reason of its failure."""
        await self.founded.until(self._tasks[name].done, f"{name} still waits")
        return self._tasks[name].exception()

    async def ends_soon(self, name: str) -> bool:
        """Return whether a start has ended after a moment."""
        await asyncio.wait([self._tasks[name]], timeout=0.5)
        return self._tasks[name].done()

    async def cancel(self, *names: str) -> None:
        """Stop nodes, whether they wait or run."""
        for name in names:
            task = self._tasks.pop(name)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            if name in self.founded.nodes:
                await self.founded.stop(name)

    async def close(self) -> None:
        await self.cancel(*self._tasks)


@asynccontextmanager
async def starts_of(founded: Founded, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Starts]:
    caplog.set_level("INFO")
    starts = Starts(founded, caplog)
    try:
        yield starts
    finally:
        await starts.close()


def wipe(founded: Founded, *names: str) -> None:
    for name in names:
        shutil.rmtree(founded.path / name)


@pytest.fixture
async def five(tmp_path: Path) -> AsyncIterator[Founded]:
    founded = Founded(tmp_path, tuple("abcde"))
    founded.settings["replication_factor_default"] = 5  # so many copies has __offsets, too
    try:
        yield founded
    finally:
        await founded.close()


async def write(founded: Founded, name: str) -> bytes:
    """Publish a record to a new topic and commit a group's position after it; return the topic's id."""
    peer = await founded.peer(name)
    topic = await peer.create("kept")
    await founded.publish(peer, topic.topic_id, b"v")
    entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=1)
    reply = await peer.ask(commit=pb.Commit(group="g", entries=[entry]))
    assert not reply.envelope.commit_reply.results[0].HasField("error")
    return topic.topic_id


async def is_kept(founded: Founded, topic_id: bytes) -> None:
    """Check that all running nodes learn the topic and the group's position again, and that they agree."""
    await founded.settled()
    assert all(node.broker.topics.exists("kept") for node in founded.nodes.values())
    asked = pb.Committed(group="g", entries=[pb.CommittedEntry(topic_id=topic_id)])
    for name in founded.nodes:
        peer = await founded.peer(name)
        async with asyncio.timeout(30):
            while True:
                reply = (await peer.ask(committed=asked)).envelope
                if reply.HasField("committed_reply") and reply.committed_reply.results[0].found:
                    break
                await asyncio.sleep(0.05)
        assert reply.committed_reply.results[0].next_offset == 1


async def test_wiped_founder_does_not_found_a_second_meta(founded: Founded, caplog: pytest.LogCaptureFixture) -> None:
    """Only a and b have ever run. b returns empty and meets c: neither knows the commits of a and b."""
    async with starts_of(founded, caplog) as starts:
        starts.begin("a", "b")
        assert await starts.admitted("a", "b") == set()
        await starts.cancel("a", "b")
        wipe(founded, "b")
        starts.begin("b", "c")
        assert await starts.admitted("b", "c") == set()

        starts.begin("a")
        assert "'a' has recorded another data directory of 'b'" in str(await starts.ended("b"))
        for _ in range(50):  # b is sent away at once, perhaps before it has written down which directory a has
            if await starts.ends_soon("a"):
                break
            starts.begin("b")
            assert "has recorded another data directory of 'b'" in str(await starts.ended("b"))
        assert await starts.ended("a") is None
        assert await starts.ended("c") is None
        await founded.settled()
        replacement = await founded.start("b", data="other", replaces=True)
        await founded.settled()
        await founded.stop(replacement.node_id)


async def test_wiped_founder_is_detected_by_its_bound_directory(
    founded: Founded, caplog: pytest.LogCaptureFixture
) -> None:
    await founded.found()
    await founded.settled()
    await founded.stop("c")
    topic_id = await write(founded, "a")
    for name in "ab":
        await founded.stop(name)
    wipe(founded, "b")
    (founded.path / "c" / "meta" / "state").unlink()
    await founded.start("c")
    async with starts_of(founded, caplog) as starts:
        starts.begin("b")
        assert isinstance(await starts.ended("b"), IdentityError)
        starts.begin("a")
        assert await starts.ended("a") is None
        await is_kept(founded, topic_id)


@pytest.mark.parametrize("late", ["", "e"], ids=["all five started", "one starts late"])
async def test_five_founders_survive_the_loss_of_two_disks(
    five: Founded, late: str, caplog: pytest.LogCaptureFixture
) -> None:
    await five.found(*(name for name in "abcde" if name != late))
    await five.settled()
    topic_id = await write(five, "a")
    for name in list(five.nodes):
        await five.stop(name)
    wipe(five, "a", "b")
    async with starts_of(five, caplog) as starts:
        starts.begin("a", "b", "e")
        if late:
            assert await starts.admitted("a", "b", "e") == set(), "three nodes without data do not form a quorum"
        else:
            assert isinstance(await starts.ended("a"), IdentityError)
            assert isinstance(await starts.ended("b"), IdentityError)
        starts.begin("c", "d")
        for name in "ab":
            assert isinstance(await starts.ended(name), IdentityError)
        for name in "cde":
            assert await starts.ended(name) is None
        if late:  # a partition with two of four copies lost exists and has no quorum
            await five.settled()
            assert all(node.broker.topics.exists("kept") for node in five.nodes.values())
        else:
            await is_kept(five, topic_id)


async def test_admitted_founder_is_bound_by_late_founders(five: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_admission, "KEEP_BINDING_S", 0.05)
    await five.found("a", "b", "c", "d")
    late = await five.start("e")

    def is_told() -> bool:
        others = [node for node in five.nodes.values() if node is not late]
        return all(late.dir.bound(node.node_id) == node.dir.directory_id for node in others)

    await five.until(is_told, "a founder does not ask it")


async def test_admitted_founder_stays_despite_an_unadmitted_binding(
    five: Founded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directory_admission, "KEEP_BINDING_S", 0.05)
    async with starts_of(five, caplog) as starts:
        starts.begin("a", "e")
        assert await starts.admitted("a", "e") == set()
        await starts.cancel("a", "e")
    wipe(five, "a")
    await five.found("a", "b", "c", "d")
    caplog.clear()
    await five.start("e")
    await five.settled()
    known = "founder e has recorded another data directory for this node, one that was never admitted"
    await five.until(lambda: known in caplog.text, "it was not asked")
    assert five.nodes["a"].lifecycle.health.state == "running"


async def test_unwritten_binding_does_not_count(
    founded: Founded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = NodeDir.bind

    def full(directory: NodeDir, node_id: str, directory_id: bytes) -> bytes:
        if directory.node_id == "c":
            raise NodeDirError("no space left")
        return bind(directory, node_id, directory_id)

    monkeypatch.setattr(NodeDir, "bind", full)
    async with starts_of(founded, caplog) as starts:
        starts.begin("a", "b", "c")
        assert await starts.admitted("a", "b", "c") == {"c"}
        monkeypatch.setattr(NodeDir, "bind", bind)
        assert [await starts.ended(name) for name in "ab"] == [None, None]
        await founded.settled()


async def test_node_binds_only_the_asking_node(founded: Founded) -> None:
    await founded.found()
    cluster = founded.nodes["a"].broker.cluster

    async def refusal(said: pb.NodeRecord) -> int:
        envelope = pb.Envelope(node_announce=pb.NodeAnnounce(node=said, ask=True, bind=True))
        with pytest.raises(ProtocolError) as refused:
            await cluster.request("b", envelope, timeout_s=10)
        return refused.value.code

    assert await refusal(pb.NodeRecord(node_id="x", directory_id=b"x" * 16)) == pb.FORBIDDEN
    assert await refusal(pb.NodeRecord(node_id="a", directory_id=b"short")) == pb.INVALID_REQUEST
    assert founded.nodes["b"].dir.bound("x") == b""


def apply_no_more(founded: Founded, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a node lag behind `__meta`, unless it becomes its owner: an owner applies all committed records first."""
    meta_log = founded.nodes[name].broker.meta_log
    usual = meta_log.apply_committed

    async def apply_committed() -> None:
        if founded.owner(META_KEY, name) == name:
            await usual()

    monkeypatch.setattr(meta_log, "apply_committed", apply_committed)


@pytest.mark.parametrize("takes_over", [False, True], ids=["lags on", "takes over"])
async def test_wiped_joiner_is_refused_by_a_lagging_node(
    founded: Founded, monkeypatch: pytest.MonkeyPatch, takes_over: bool
) -> None:
    await founded.found()
    await founded.settled()
    owner = founded.owner(META_KEY, "a")
    lagging, other = (name for name in "abc" if name != owner)
    with monkeypatch.context() as lags:
        apply_no_more(founded, lagging, lags)
        await founded.join("d", other)
        known_by = [founded.nodes[name].broker.nodes for name in (owner, other, "d")]
        await founded.until(lambda: all(nodes.get("d") is not None for nodes in known_by), "d is not registered")
        await founded.stop("d")
        if takes_over:
            meta = founded.nodes[owner].broker.partitions.get(*META_KEY)
            meta.driver.roll_over(replace(meta.replica.ownership.plan_next(), owner=lagging))
            await founded.until(lambda: founded.owner(META_KEY, lagging) == lagging, "the owner stays")
        else:
            assert founded.nodes[lagging].broker.nodes.get("d") is None or founded.owner(META_KEY, lagging) == lagging
        with pytest.raises(IdentityError, match="is new, but node 'd' is registered with another one"):
            await founded.join("d", lagging, data="empty")
    await founded.join("d", lagging)
    await founded.settled()


async def test_joiner_takes_no_part_before_its_record_is_committed(
    founded: Founded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await founded.found()
    await founded.settled()
    for name in "bc":
        await founded.stop(name)
    joining = asyncio.create_task(founded.join("d", "a"))
    await founded.until(lambda: "'d' waits to be registered" in caplog.text or joining.done(), "nothing was logged")
    assert not joining.done(), "its record cannot have been written"
    await founded.start("b")
    node = await joining
    record = founded.nodes["a"].broker.nodes.get("d")
    assert record is not None
    assert record.directory_id == node.dir.directory_id
    await founded.settled()


async def test_joiner_that_failed_after_registration_is_admitted(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await founded.found()
    await founded.settled()

    def dies(directory: NodeDir) -> None:
        raise NodeDirError(f"{directory.path}: no space left")

    with monkeypatch.context() as patched:
        patched.setattr(NodeDir, "mark_admitted", dies)
        with pytest.raises(NodeDirError):
            await founded.join("d", "a")
    assert not json.loads((founded.path / "d" / "node.json").read_text())["admitted"]
    for name in "bc":  # without a quorum __meta has no owner, and d could be a missing member
        await founded.stop(name)
    async with asyncio.timeout(10):
        await founded.join("d", "a")
    await founded.start("b")
    await founded.settled()


async def test_joiner_that_failed_after_admission_can_store_meta(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    await founded.join("d", "a")
    await founded.settled()
    await founded.stop("d")
    (founded.path / "d" / "meta" / "state").unlink()
    node = await founded.join("d", "a")
    await founded.until(lambda: node.broker.topics.get(META_KEY[0]) is not None, "it does not know __meta")
    await founded.settled()


async def test_unregistered_founder_cannot_join_by_seeds(five: Founded) -> None:
    """Its name may have voted from a directory that was never registered, and is only known to other founders."""
    await five.found("a", "b", "c", "d")
    await five.settled()
    with pytest.raises(IdentityError, match="'e' is a founder; start it with the bootstrap file"):
        await five.join("e", "a")
    await five.start("e")
    await five.settled()


async def test_directories_and_records_without_ids_are_accepted(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_admission, "KEEP_BINDING_S", 0.05)

    def nameless(said: Callable[..., pb.NodeRecord]) -> Callable[..., pb.NodeRecord]:
        def record(node: Broker, *, gossip_port: int) -> pb.NodeRecord:
            found = said(node, gossip_port=gossip_port)
            found.ClearField("directory_id")
            return found

        return record

    with monkeypatch.context() as old:
        old.setattr(cluster_membership, "own_record", nameless(directory_admission.own_record))
        await founded.found()
        await founded.settled()
        topic_id = await write(founded, "a")
        for name in "abc":
            await founded.stop(name)
    for name in "abc":
        path = founded.path / name / "node.json"
        record = json.loads(path.read_text())
        del record["directory_id"], record["bound"]
        path.write_text(json.dumps(record | {"format_version": 1}))
        (founded.path / name / "meta" / "lives").unlink()
    await founded.found()
    await is_kept(founded, topic_id)

    def has_ids() -> bool:
        return all(
            (record := one.broker.nodes.get(other.node_id)) is not None
            and record.directory_id == other.dir.directory_id
            and (one is other or one.dir.bound(other.node_id) == other.dir.directory_id)
            for one in founded.nodes.values()
            for other in founded.nodes.values()
        )

    await founded.until(has_ids, "a directory is not known by its id")
    await founded.stop("b")
    with pytest.raises(IdentityError, match="--replace"):
        await founded.start("b", data="empty")
