"""Mistakes and attacks of people, machines and strangers: the errors are clear, and no data is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, started_cluster
from tests.broker.founded import Founded
from tests.broker.peer import batch
from tests.broker.stand import settled
from tests.e2e.test_cluster import Cluster, cluster, copies_are_level, read_all, until
from tests.private_files import keep_private

from tidelog import Client
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.core.membership.failure_detection import Refusal
from tidelog_broker.core.membership.members import Address
from tidelog_broker.core.replication.ports import Batch
from tidelog_cli.up.local_cluster import free_ports
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import NATURE, ProtocolError

TELL_TIMEOUT_S = 60


class Started:
    """`tidelog node` as its own process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def gives_up(self) -> tuple[int, str]:
        """Return its exit code and the last line."""
        assert self.process.stderr is not None
        async with asyncio.timeout(TELL_TIMEOUT_S):
            said = (await self.process.stderr.read()).decode()
            return await self.process.wait(), said.strip().splitlines()[-1]

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await self.process.wait()


async def start(*words: object) -> Started:
    command = [sys.executable, "-m", "tidelog_cli", "node", *map(str, words), "--management-port", "0"]
    return Started(await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE))


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path / "data") as made:
        yield made


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def founded(tmp_path: Path) -> AsyncIterator[Founded]:
    made = Founded(tmp_path)
    try:
        yield made
    finally:
        await made.close()


# ---------------------------------------------------------------------------- mistakes, with nodes as processes


@pytest.mark.long
@pytest.mark.e2e
async def test_nodes_of_another_cluster_get_an_error_and_the_cluster_continues(up: Cluster, tmp_path: Path) -> None:
    keep_private(tmp_path / "other", "the secret of others")
    secret, file = up.data / "secret", up.data / "cluster.json"
    port, gossip_port = free_ports(2)
    async with Client(up.bootstrap) as client:
        await client.create_topic("flights", replication_factor=3)
        await client.producer("flights").send(b"before")
        joining = ["--seeds", up.bootstrap, "--port", port]

        stranger = await start(*joining, "--secret-file", tmp_path / "other", "--data", tmp_path / "stranger")
        code, told = await stranger.gives_up()
        assert code == 1
        assert "UNAUTHENTICATED: node" in told
        assert "has another cluster secret: configure the same one on every node" in told

        theirs = json.loads(file.read_text()) | {"cluster_id": "ab" * 16}
        theirs["nodes"][0] |= {"node_id": "x1", "port": port, "gossip_port": gossip_port}
        (tmp_path / "theirs.json").write_text(json.dumps(theirs))
        words = ["--bootstrap", tmp_path / "theirs.json", "--secret-file", secret, "--node-id", "x1"]
        foreign = await start(*words, "--data", tmp_path / "foreign")
        code, told = await foreign.gives_up()
        assert code == 1
        assert "a data directory cannot change its cluster" in told
        assert "belongs to cluster" in told
        assert "ab" * 16 in told

        ours = ["--bootstrap", file, "--secret-file", secret, "--node-id", "node2", "--port", port]
        ours += ["--gossip-port", gossip_port]
        code, told = await (await start(*ours, "--data", tmp_path / "empty")).gives_up()
        assert code == 1
        # Which of the two is the later start is a matter of luck where both are the first of their directory.
        known = "node 'node2' is registered with another one: start the node with the registered directory"
        assert known in told or "another process with the node id 'node2' is connected" in told

        shutil.copytree(up.data / "node2", tmp_path / "old")
        record = json.loads((tmp_path / "old" / "node.json").read_text())
        (tmp_path / "old" / "node.json").write_text(json.dumps(record | {"format_version": 0}))
        code, told = await (await start(*ours, "--data", tmp_path / "old")).gives_up()
        assert code == 1
        assert "has format version 0; this build reads 1 to 3; use the older build that wrote it" in told

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            words = [*joining, "--secret-file", secret, "--gossip-port", taken.getsockname()[1]]
            code, told = await (await start(*words, "--data", tmp_path / "deaf")).gives_up()
        assert code == 1
        assert "(UDP) for gossip: Address already in use" in told
        assert "stop the program that uses the port, or set --port" in told

        await client.producer("flights").send(b"after")
        assert await read_all(client, "flights", 2) == [b"before", b"after"]
        await until(client, lambda status: copies_are_level(status, "flights"), "a copy lags")
        await until(
            client,
            lambda status: {node.node_id for node in status.nodes if node.alive} == set(up.nodes),
            "another node belongs to the cluster, or a node is thought dead",
        )


@pytest.mark.long
@pytest.mark.e2e
async def test_copy_of_the_directory_of_a_running_node_ends_and_the_node_goes_on(up: Cluster, tmp_path: Path) -> None:
    port, gossip_port = free_ports(2)
    async with Client(up.bootstrap) as client:
        await client.create_topic("flights", replication_factor=3)
        await client.producer("flights").send(b"before")
        shutil.copytree(up.data / "node2", tmp_path / "copy")
        words = ["--bootstrap", up.data / "cluster.json", "--secret-file", up.data / "secret", "--node-id", "node2"]
        copy = await start(*words, "--data", tmp_path / "copy", "--port", port, "--gossip-port", gossip_port)
        code, said = await copy.gives_up()
        assert code == 78
        assert "another process uses node id 'node2'" in said or "an older copy" in said
        await client.producer("flights").send(b"after")
        assert await read_all(client, "flights", 2) == [b"before", b"after"]
        nodes = {node.node_id: node.state for node in (await client.cluster_status(topics=False)).nodes}
        assert nodes["node2"] == "running"


# ----------------------------------------------------------------------------------------- strangers and forgers


async def test_messages_between_nodes_are_refused_from_a_client(founded: Founded) -> None:
    """The sender knows topic, epoch and ballots, but is not a node: the epoch continues unchanged."""
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(replication_factor=3)
    await founded.publish(peer, topic.topic_id, b"one")
    copies = await founded.copies((topic.topic_id, 0), end_offset=1)
    active = copies[0].replica.state.active
    data = batch(b"forged")
    append = pb.AppendBatch(
        topic_id=topic.topic_id,
        epoch=active.epoch,
        owner=active.owner,
        owner_incarnation=active.owner_incarnation,
        base_offset=1,
        end_offset=2,
        previous_digest=copies[0].replica.state.tail.durable.digest,
        end_digest=unpack_header(memoryview(bytearray(data))).digest,
        length=len(data),
    )
    ballot = pb.Ballot(round=99, node_id="a", incarnation=1)
    seal = pb.Seal(topic_id=topic.topic_id, epoch=active.epoch, ballot=ballot)
    for name in "abc":
        stranger = await founded.peer(name)
        for kind, error in (
            (
                {"append_batch": pb.AppendBatches(entries=[append])},
                await stranger.refused(data, append_batch=pb.AppendBatches(entries=[append])),
            ),
            ({"seal": pb.Seals(entries=[seal])}, await stranger.refused(seal=pb.Seals(entries=[seal]))),
        ):
            assert error.code == pb.FORBIDDEN, kind
            assert "nodes of the cluster" in error.message
    assert not any(one.replica.state.promised for one in copies)
    result = await founded.publish(peer, topic.topic_id, b"two")
    assert (result.base_offset, result.epoch) == (1, active.epoch)
    await founded.copies((topic.topic_id, 0), end_offset=2)
    assert await (await founded.peer(active.owner)).read_all(topic.topic_id) == [b"one", b"two"]


async def test_forged_and_replayed_gossip_declares_no_node_dead(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    heard: list[bytes] = []
    membership = founded.nodes["a"].membership
    assert membership is not None
    target = membership._gossip
    assert target is not None
    receive = target._receiver._received

    def noting(datagram: bytes, source: Address) -> None:
        heard.append(bytes(datagram))
        receive(datagram, source)

    target._receiver._received = noting
    await founded.until(lambda: len(heard) >= 20, "nobody talks")
    replayed, forged = target.refusals[Refusal.REPLAYED], target.forged
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in heard[:20]:
            stranger.sendto(datagram, tuple(target.address))
            bent = bytearray(datagram)
            bent[len(bent) // 2] ^= 1
            stranger.sendto(bent, tuple(target.address))
            stranger.sendto(os.urandom(len(datagram)), tuple(target.address))
    await founded.until(lambda: target.forged >= forged + 40, "forged datagrams were not counted")
    await founded.until(
        lambda: target.refusals[Refusal.REPLAYED] >= replayed + 20, "replayed datagrams were not counted"
    )
    assert all(one.broker.cluster.alive(name) for one in founded.nodes.values() for name in "abc")


# ------------------------------------------------------------------------------------------------- bad machines


async def test_with_half_of_the_nodes_dead_writers_get_errors_and_readers_are_served(founded: Founded) -> None:
    await founded.found()
    await founded.join()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(replication_factor=4)
    await founded.publish(peer, topic.topic_id, b"one")
    kept = founded.nodes["a"].broker.partitions.get(topic.topic_id, 0)
    await founded.until(lambda: kept.state.readable_end == 1, "the copy is not level")
    for name in ("c", "d"):
        await founded.stop(name)
    await founded.until(lambda: not founded.nodes["a"].broker.cluster.alive("d"), "the dead nodes were not detected")

    async def refused() -> pb.Error:
        while True:
            (result,) = await peer.published(peer.post_publish(topic.topic_id, batch(b"two"), timeout_ms=3000))
            assert result.HasField("error"), "two of four do not form a quorum"
            if result.error.code == pb.QUORUM_LOST:
                return result.error

    async with asyncio.timeout(TELL_TIMEOUT_S):
        error = await refused()
    assert (error.retriable, error.definite) == (True, True)
    assert "2 of 4 replicas are alive, 3 are needed" in error.message
    status = (await peer.ask(cluster_status=pb.ClusterStatus())).envelope.cluster_status_reply
    assert [one.partitions[0].state for one in status.topics if one.name == "t"] == ["no quorum"]
    assert await peer.read_all(topic.topic_id) == [b"one"]
    await founded.start("c")
    await founded.publish(peer, topic.topic_id, b"three")
    await founded.until(lambda: kept.state.readable_end == 2, "the epoch does not continue")
    assert await peer.read_all(topic.topic_id) == [b"one", b"three"]


async def test_an_owner_with_a_failed_sync_stops_and_the_others_continue(
    stand: ClusterStand, caplog: pytest.LogCaptureFixture
) -> None:
    await stand.start()
    first = await stand.owner()
    await stand.publish(b"one")
    stand.disks[first].break_at("sync")
    peer = await stand.peer(first)
    number = peer.post_publish(TOPIC_ID, batch(b"two", producer_id=7))
    node = stand.nodes[first]
    await settled(lambda: node.lifecycle.health.state == "failed", "the node continues with a failed sync")
    (result,) = await peer.published(number)
    # The other two may have had it before the disk failed: then it was committed, and stays.
    committed = not result.HasField("error")
    assert committed or (result.error.code == pb.STORAGE_FAILED and not result.error.definite)
    assert "writing the log failed" in caplog.text
    stand.disks[first].heal()
    await node.run_until_stopped()
    assert node.lifecycle.exit_code == os.EX_IOERR
    await stand.crash(first)
    second = await stand.owner(but=first)
    peer = await stand.peer(second)
    (again,) = await peer.publish(TOPIC_ID, batch(b"two", producer_id=7))
    assert not again.HasField("error")
    assert again.duplicate or not committed
    await stand.start(first)
    await stand.agree(b"one", b"two")


async def test_append_timestamps_increase_regardless_of_the_next_owners_clock(
    stand: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps back an hour, then a day ahead, then back; each time another node is the owner."""
    now_us = clock_us = 1_800_000_000_000_000
    monkeypatch.setattr(SteadyClock, "now_us", lambda _: clock_us)
    await stand.start()
    stamps: list[int] = []
    for jump_s in (0, -3600, 86_400, -7200):
        clock_us = now_us + jump_s * 1_000_000
        owner = await stand.owner()
        stamps += [one.append_timestamp_us for one in await stand.publish(b"v")]
        await stand.crash(owner)
        await stand.owner(but=owner)
        await stand.start(owner)
    assert stamps == sorted(stamps)
    assert stamps[2] == now_us + 86_400 * 1_000_000 == stamps[3], "and they follow the clock where it goes forward"
    headers = [one.header for one in await stand_batches(stand)]
    assert [header.append_timestamp_us for header in headers] == stamps


async def stand_batches(stand: ClusterStand) -> list[Batch]:
    """Return the batches of the log, as the owner's disk has them once it has fetched what it missed."""
    owner = await stand.owner()
    found: list[Batch] = []
    offset = 0
    async with asyncio.timeout(30):
        while offset < stand.partition(owner).state.high_watermark:
            try:
                views = await stand.partition(owner).reader.read_log(offset, 1)
            except ProtocolError as error:
                if not NATURE[error.code].retriable:
                    raise
                await asyncio.sleep(0.05)
                continue
            for view in views:
                found.append(Batch(unpack_header(view), view))
                offset = found[-1].header.end_offset
    return found


async def test_timers_do_not_look_at_the_wall_clock(stand: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour's jump on every node changes no owner and loses no time-out."""
    await stand.start()
    owner = await stand.owner()
    epoch = stand.partition(owner).state.epoch
    for jump_s in (3600, -3600):
        clock_s = 1_800_000_000 + jump_s
        monkeypatch.setattr("time.time", lambda clock_s=clock_s: float(clock_s))
        monkeypatch.setattr("time.time_ns", lambda clock_s=clock_s: clock_s * 10**9)
        await stand.publish(b"v")
        stand.tell()
    assert [stand.partition(name).state.epoch for name in NODES] == [epoch] * 3
    assert await stand.owner() == owner
