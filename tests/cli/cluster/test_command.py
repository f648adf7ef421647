from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import pytest
from tests.cli.conftest import Cli

from tidelog import ClusterStatus, Node, Partition, Replica, Topic
from tidelog_broker.metadata.levels import LEVELS
from tidelog_cli.base import failures
from tidelog_cli.base.output import ABSENT
from tidelog_cli.cluster import command, drain_progress
from tidelog_cli.cluster.command import (
    ending_texts,
    level_text,
    missing_text,
    print_status,
    state_text,
    status_document,
    stopped_text,
)


def test_the_status_shows_node_and_topics(cli: Cli, topic: str, node: str) -> None:
    assert cli("produce", topic, stdin=b"a\nb\n").code == 0
    status = json.loads(cli("cluster", "status", "--json").out)
    (only,) = status["nodes"]
    assert only["state"] == "running"
    assert f"{only['host']}:{only['port']}" == node
    (mine,) = [described for described in status["topics"] if described["name"] == topic]
    assert sum(p["high_watermark"] for p in mine["partitions"]) == 2
    assert [copy["copy_fault"] for p in mine["partitions"] for copy in p["replicas"]] == [""] * len(mine["partitions"])
    shown = cli("cluster", "status").out
    assert only["node_id"] in shown
    assert topic in shown


@pytest.mark.long
@pytest.mark.parametrize("words", [("drain", "n"), ("undrain", "n"), ("remove", "n"), ("rebalance",)])
def test_single_node_cannot_be_drained_or_rebalanced(cli: Cli, words: tuple[str, ...]) -> None:
    told = cli("cluster", *words)
    assert told.code == failures.EXIT_FAILED
    assert "does not belong to a cluster" in told.err


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Node("a", "h", 1, state="running"), "running"),
        (Node("a", "h", 1, state="running", membership="suspect", draining=True), "suspect, draining"),
        (Node("a", "h", 1, alive=False, state="no answer", membership="dead"), "dead"),
        (Node("a", "h", 1, alive=False, state="no answer", membership="left"), "left"),
    ],
)
def test_a_nodes_state_is_what_the_others_say_if_that_is_worse(node: Node, text: str) -> None:
    assert state_text(node) == text


def test_nothing_is_made_up_of_what_a_dead_node_cannot_tell(capsys: pytest.CaptureFixture[str]) -> None:
    away, idle = Partition(0, "a", 3, ("a",), state="away"), Partition(1, "b", 3, ("b",), state="idle")
    status = ClusterStatus(b"", (Node("a", "h", 1, alive=False, state="no answer"),), (Topic("t", b"", (away, idle)),))
    (node,) = status_document(status)["nodes"]
    assert (node["uptime_ms"], node["data_bytes"], node["disk_free_bytes"]) == (None, None, None)
    print_status(status, internal=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(row for row in rows if row[:1] == ["a"])[-5:] == [ABSENT] * 5
    told = [row[-3:] for row in rows if row[:1] == ["t"]]
    assert told == [[ABSENT, ABSENT, "away"], [ABSENT, ABSENT, "idle"]], "no records would be a claim"


def test_the_status_shows_versions_and_asks_for_an_upgrade_to_be_finalised(capsys: pytest.CaptureFixture[str]) -> None:
    new, old = (
        Node(n, "h", 1, software=f"tidelog-node/{v}", level=number)
        for n, v, number in (("a", "0.3", 3), ("b", "0.2", 2))
    )
    status = ClusterStatus(b"", (new, old), level=1)
    print_status(status, internal=False)
    told = capsys.readouterr()
    assert [line.split()[:2] for line in told.out.splitlines() if " h:1 " in line] == [["a", "0.3"], ["b", "0.2"]]
    assert "feature level 1, and every node supports level 2: `tidelog cluster finalize`" in told.err
    assert (status_document(status)["level"], status_document(status)["nodes"][0]["level"]) == (1, 3)
    assert level_text(ClusterStatus(b"", (new, old), level=2)) == ""
    assert level_text(ClusterStatus(b"", (new, Node("c", "h", 1)), level=1)) == "", "an older build"
    assert level_text(ClusterStatus(b"", (new,))) == "", "asked of an older build"


def test_copies_on_a_node_that_is_down_are_marked_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = (Node("a", "h", 1), Node("b", "h", 2, alive=False, state="no answer", membership="dead"))
    replicas = (Replica("a", 9, 0), Replica("b", 9, 0))
    partitions = tuple(Partition(at, "a", 3, ("a", "b"), state="active", replicas=replicas) for at in range(10))
    print_status(ClusterStatus(b"", nodes, (Topic("t", b"", partitions),)), internal=False)
    told = capsys.readouterr()
    assert told.out.count("a (0) b (down)") == 10
    assert "node b is down: 10 partitions lack its copy (t/0, t/1, " in told.err
    assert "start it, or if its disk is lost replace it" in told.err
    print_status(ClusterStatus(b"", nodes[:1], (Topic("t", b"", partitions),)), internal=False)
    assert "is down" not in capsys.readouterr().err


def test_an_upgrade_is_finalised_by_a_command(cli: Cli) -> None:
    told = cli("cluster", "finalize")
    assert (told.code, told.out) == (
        0,
        f"the cluster is at feature level {LEVELS[-1].number}; nodes of builds that do not support it are refused\n",
    )


def test_a_recovery_that_may_lose_records_warns_first(cli: Cli) -> None:
    told = cli("cluster", "unsafe-recover", "flights", "0", "--node", "log1")
    assert told.code == failures.EXIT_USAGE
    assert "are LOST" in told.err
    assert "--yes-i-accept-data-loss" in told.err


def test_a_node_on_its_own_has_no_quorum_to_lose(cli: Cli) -> None:
    told = cli("cluster", "unsafe-recover", "flights", "0", "--node", "log1", "--yes-i-accept-data-loss")
    assert told.code == failures.EXIT_FAILED
    assert "does not belong to a cluster" in told.err


def test_the_status_says_what_a_lost_quorum_takes_away() -> None:
    nodes = (Node("a", "h", 1), Node("b", "h", 2, alive=False), Node("c", "h", 3, alive=False))
    lost = Partition(0, "a", 0, (), 0, 0, 0, "no quorum")
    topics = tuple(Topic(name, bytes(16), (lost,)) for name in ("__offsets", "t"))
    told = missing_text(ClusterStatus(bytes(16), nodes, topics))
    assert told.startswith("2 partitions without a quorum (t/0, __offsets/0): writes fail")
    assert "the positions of some groups are unavailable" in told
    assert "topics and nodes" not in told
    assert told.endswith("missing nodes: b, c")
    many = Topic("t", bytes(16), tuple(Partition(n, "a", 0, (), 0, 0, 0, "no quorum") for n in range(20)))
    assert "20 partitions without a quorum (t/0, " in missing_text(ClusterStatus(bytes(16), nodes, (many,)))
    assert "t/7, …)" in missing_text(ClusterStatus(bytes(16), nodes, (many,)))
    assert not missing_text(ClusterStatus(bytes(16), nodes))


def test_the_status_names_partitions_whose_copy_is_damaged() -> None:
    nodes = (Node("a", "h", 1), Node("b", "h", 2))
    active = Topic("s", bytes(16), (Partition(0, "a", 0, ("a",), state="active"),))
    damaged = Topic("t", bytes(16), (Partition(3, "b", 0, ("b",), state="limbo"),))
    told = stopped_text(ClusterStatus(bytes(16), nodes, (active, damaged)))
    assert told.startswith("1 partition takes no records (t/3 on b is limbo): ")
    assert "tidelog log verify" in told
    assert not stopped_text(ClusterStatus(bytes(16), nodes, (active,)))
    many = Topic("t", bytes(16), tuple(Partition(n, "a", 0, ("a",), state="failed") for n in range(9)))
    assert "9 partitions take no records (t/0 on a is failed, " in stopped_text(
        ClusterStatus(bytes(16), nodes, (many,))
    )
    assert "t/7 on a is failed, …)" in stopped_text(ClusterStatus(bytes(16), nodes, (many,)))


def test_certificates_that_end_soon_are_warned_of() -> None:
    now_s = 1_800_000_000
    days_us = 24 * 3600 * 1_000_000

    def ending(node_id: str, days: float | None, ca_days: float = 400) -> Node:
        ends = None if days is None else int(now_s * 1e6 + days * days_us)
        return Node(node_id, "h", 1, certificate_ends_us=ends, ca_ends_us=int(now_s * 1e6 + ca_days * days_us))

    nodes = (ending("a", 31), ending("b", 29), ending("c", -1), ending("d", 300, ca_days=5), ending("e", None))
    texts = ending_texts(ClusterStatus(b"", nodes), now_s)
    assert [text.partition(" on ")[0] for text in texts] == [
        "the certificate of b expires",
        "the certificate of c expired",
        "the CA of d expires",
    ]
    assert "on 2027-02-13: replace it with a newer one (tidelog certs issue … --replace)" in texts[0]
    assert "certs issue" not in texts[2]
    told = status_document(ClusterStatus(b"", nodes))
    assert told["nodes"][0]["certificate_ends_ms"] == now_s * 1000 + 31 * 24 * 3600 * 1000
    assert told["nodes"][4]["certificate_ends_ms"] is None
    assert isinstance(told["warnings"], list)


class _Draining:
    """A client of a cluster whose node "a" stores a partition in the first two looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.moves = [1, 1, 0]

    async def drain_node(self, _: str) -> None:
        pass

    async def rebalance(self) -> int:
        return self.moves.pop(0)

    async def cluster_status(self) -> ClusterStatus:
        self.looks += 1
        placement = ("a", "b") if self.looks <= 2 else ("b", "c")
        replicas = (Replica("b", 0, 0, missing_records=1, missing_epochs=1),) if self.looks <= 2 else ()
        nodes = tuple(Node(name, "h", 1, roles=("persistence",), draining=name == "a") for name in "abc")
        partition = Partition(0, placement[0], 1, placement, replicas=replicas)
        return ClusterStatus(b"", nodes, (Topic("t", b"", (partition,), replication_factor=2),))


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda: command.drain("a", wait=True), "a stores no partitions"),
        (lambda: command.rebalance(wait=True), "all copies are complete"),
    ],
)
def test_command_that_waits_writes_to_standard_output_only_at_the_end(
    call: Callable[[], None], shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost confirmation counts as success, so it must not be written before the work is done."""
    client = _Draining()
    monkeypatch.setattr(command, "with_client", lambda _, work: asyncio.run(work(client)))
    monkeypatch.setattr(command, "LOOK_S", 0)
    monkeypatch.setattr(drain_progress, "LOOK_S", 0)
    written_at: list[int] = []
    write = sys.stdout.write

    def note_write(text: str) -> int:
        written_at.append(client.looks)
        return write(text)

    monkeypatch.setattr(sys.stdout, "write", note_write)
    call()
    assert written_at == [3]
    assert capsys.readouterr().out.startswith(f"done: {shown}")
