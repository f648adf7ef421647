"""Membership in a virtual network: loss, delay, duplication, partitions, pauses, restarts, clones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.core.swim_world import CLUSTER, Running, World, address, incarnation, member
from tests.holding import longest_of

from tidelog_broker.core.membership.failure_detection import Refusal, Swim
from tidelog_broker.core.membership.gossip_messages import DatagramWriter, Ping
from tidelog_broker.core.membership.member_states import Change
from tidelog_broker.core.membership.members import Member, MemberState
from tidelog_broker.core.membership.swim_settings import SwimSettings

SEEDS = range(12)
BAD = {Change.SUSPECT, Change.DEAD, Change.LEFT}


def name(node: Running) -> str:
    return node.swim.me.node_id


def suspicions_of_the_living(nodes: list[Running]) -> list[Change]:
    return [change for node in nodes for other in nodes for change in node.changes(name(other)) if change in BAD]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 40])
def test_nodes_discover_each_other_through_one_seed_without_suspicions(size: int) -> None:
    world = World(size)
    nodes = world.cluster(size)
    world.run(5_000)
    assert world.agree(nodes)
    assert not suspicions_of_the_living(nodes)
    for node in nodes:
        assert dict(node.swim.members) == dict(nodes[0].swim.members)
        others = {name(other) for other in nodes} - {name(node)}
        assert {other: node.changes(other) for other in others} == {other: [Change.ALIVE] for other in others}


def test_idle_cluster_sends_few_datagrams() -> None:
    world = World(1)
    nodes = world.cluster(10)
    world.run(2_000)
    before = world.sent
    world.run(1_000)
    assert world.sent - before <= 10 * 10 * 2, "a ping and an answer a period and node"
    writer = DatagramWriter(cluster_id=CLUSTER, sender="n0", incarnation=1, counter=1, digest=1, body=Ping(1, "n1"))
    effects = nodes[0].swim.tick(nodes[0].swim.next_tick_ms)
    assert all(len(payload) <= len(writer.finish()) + 8 for _, payload in effects.outgoing), "and nothing in them"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [2, 3, 5, 10])
def test_killed_node_is_known_dead_by_all_within_two_seconds(size: int, seed: int) -> None:
    world = World(seed)
    nodes = world.cluster(size)
    world.run(world.random.randrange(500))
    killed = nodes[world.random.randrange(size)]
    world.kill(killed)
    rest = [node for node in nodes if node is not killed]
    world.until(lambda: not any(node.swim.members.alive(name(killed)) for node in rest), within_ms=2_000)
    assert all(node.changes(name(killed)) == [Change.ALIVE, Change.SUSPECT, Change.DEAD] for node in rest)
    world.until(lambda: world.agree(rest), within_ms=1_000)
    assert not suspicions_of_the_living(rest)


@pytest.mark.parametrize("seed", SEEDS)
def test_failure_of_a_whole_zone_is_detected(seed: int) -> None:
    world = World(seed)
    nodes = world.cluster(10)
    for node in nodes[:4]:
        world.kill(node)
    world.until(lambda: world.agree(nodes[4:]), within_ms=5_000)


def test_killed_node_is_detected_without_helpers() -> None:
    world = World(1)
    one, other = world.cluster(2)
    world.kill(other)
    assert world.until(lambda: not one.swim.members.alive(name(other)), within_ms=1_800) >= 800


@pytest.mark.parametrize("seed", SEEDS)
def test_live_nodes_stay_members_despite_loss_delay_and_duplication(seed: int) -> None:
    world = World(seed, loss=0.1, duplication=0.2, delay_ms=(0, 15))
    nodes = world.cluster(8)
    world.run(20_000)
    deaths = [change for change in suspicions_of_the_living(nodes) if change is not Change.SUSPECT]
    assert not deaths, "false suspicions are contradicted in time"
    world.kill(nodes[3])
    rest = [node for node in nodes if node is not nodes[3]]
    world.until(lambda: not any(node.swim.members.alive("n3") for node in rest), within_ms=4_000)
    world.loss = 0
    world.until(lambda: world.agree(rest), within_ms=2_000)


def test_broken_path_between_two_nodes_is_bridged_by_indirect_probes() -> None:
    world = World(3)
    nodes = world.cluster(5)
    world.cut = lambda a, b: {a, b} == {address(0), address(1)}
    world.run(10_000)
    assert not suspicions_of_the_living(nodes)


def test_false_suspicion_is_refuted() -> None:
    world = World(4)
    nodes = world.cluster(5)
    world.apply(nodes[0], nodes[0].swim.suspect_now("n1", world.now_ms))
    assert nodes[0].changes("n1")[-1] is Change.SUSPECT
    assert world.until(lambda: world.agree(nodes), within_ms=250) > 0
    assert all(node.swim.members["n1"].refutation == 1 for node in nodes)
    world.run(2_000)
    assert not [change for change in suspicions_of_the_living(nodes) if change is Change.DEAD]


def test_refused_connection_speeds_up_detection() -> None:
    world = World(5)
    nodes = world.cluster(3)
    world.kill(nodes[1])
    world.apply(nodes[0], nodes[0].swim.suspect_now("n1", world.now_ms))
    world.apply(nodes[0], nodes[0].swim.suspect_now("n1", world.now_ms))
    world.until(lambda: not any(node.swim.members.alive("n1") for node in (nodes[0], nodes[2])), within_ms=310)


def test_suspecting_this_node_or_an_unknown_one_does_nothing() -> None:
    world = World(6)
    node = world.start(member(0))
    for node_id in ("n0", "who"):
        assert node.swim.suspect_now(node_id, 0).events == []


@pytest.mark.parametrize("seed", SEEDS)
def test_healed_partition_merges(seed: int) -> None:
    world = World(seed)
    nodes = world.cluster(7)
    left, right = nodes[:3], nodes[3:]
    side = {node.swim.me.gossip: node in left for node in nodes}
    world.cut = lambda a, b: side[a] != side[b]
    world.until(lambda: world.agree(left) and world.agree(right), within_ms=8_000)
    world.run(30_000)
    world.cut = lambda _a, _b: False
    world.until(lambda: world.agree(nodes), within_ms=4_000)
    assert all(node.changes(name(nodes[5]))[-2:] == [Change.DEAD, Change.ALIVE] for node in left)


@pytest.mark.parametrize("seed", SEEDS)
def test_paused_process_suspects_no_member_and_rejoins(seed: int) -> None:
    world = World(seed)
    nodes = world.cluster(5)
    world.run(world.random.randrange(300))
    sleeper, rest = nodes[2], [node for node in nodes if node is not nodes[2]]
    events = len(sleeper.events)
    world.pause(sleeper, 5_000)
    world.until(lambda: not any(node.swim.members.alive("n2") for node in rest), within_ms=2_000)
    world.run(5_000 - 2_000)
    world.until(lambda: not sleeper.paused, within_ms=2_000)
    world.until(lambda: world.agree(nodes), within_ms=2_000)
    assert sleeper.swim.tick_gaps == 1
    assert sleeper.events[events:] == [], "no member was suspected, and nothing had changed"


def test_pending_suspicion_restarts_after_a_pause() -> None:
    world = World(8)
    nodes = world.cluster(2)
    world.cut = lambda _a, _b: True
    world.until(lambda: nodes[0].changes("n1")[-1] is Change.SUSPECT, within_ms=1_000)
    world.pause(nodes[0], 2_000)
    world.pause(nodes[1], 1_999)
    world.run(1_999)
    world.cut = lambda _a, _b: False
    world.until(lambda: world.agree(nodes), within_ms=500)
    assert Change.DEAD not in nodes[0].changes("n1")


def test_late_timers_scale_times_and_answers_reset_them() -> None:
    swim = Swim(member(0), cluster_id=CLUSTER, chooser=random.Random(1), now_ms=0)
    for _ in range(10):
        swim.tick(swim.next_tick_ms + 40)
    assert swim.slowness.value == swim.settings.slowness_max
    assert swim.tick_gaps == 0
    world = World(9)
    nodes = world.cluster(3)
    nodes[0].swim.slowness.worse()
    world.run(2_000)
    assert nodes[0].swim.slowness.value == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_restarted_node_supersedes_its_earlier_process(seed: int) -> None:
    world = World(seed)
    nodes = world.cluster(4)
    world.kill(nodes[1])
    again = world.start(member(1, boot=2), seeds=[address(0)])
    now = [nodes[0], again, *nodes[2:]]
    world.until(lambda: world.agree(now), within_ms=1_000)
    for node in (nodes[0], nodes[2], nodes[3]):
        assert Change.RESTARTED in node.changes("n1")
        assert node.swim.members["n1"].incarnation == incarnation(2)
    assert not again.conflicts()
    world.run(3_000)
    assert world.agree(now)


def test_node_with_a_new_address_is_found() -> None:
    world = World(11)
    nodes = world.cluster(3)
    world.kill(nodes[2])
    again = world.start(member(2, boot=2, at=77), seeds=[address(1)])
    world.until(lambda: world.agree([nodes[0], nodes[1], again]), within_ms=2_000)
    world.run(3_000)
    assert nodes[0].swim.members["n2"].gossip == address(77)
    assert Change.DEAD not in nodes[0].changes("n2")


@pytest.mark.parametrize("seed", SEEDS)
def test_earlier_of_two_processes_with_one_id_stops(seed: int) -> None:
    world = World(seed)
    nodes = world.cluster(3)
    clone = world.start(member(1, boot=2, at=50), seeds=[address(0)])
    world.until(lambda: nodes[1].swim.halted, within_ms=3_000)
    (conflict,) = nodes[1].conflicts()
    assert (conflict.node_id, conflict.incarnation, conflict.other_incarnation) == (
        "n1",
        incarnation(1),
        incarnation(2),
    )
    world.until(lambda: world.agree([nodes[0], clone, nodes[2]]), within_ms=3_000)
    sent = [nodes[1].swim.tick(world.now_ms + 10_000 * i).outgoing for i in range(1, 4)]
    assert sent == [[], [], []], "a halted node sends nothing"


def test_one_of_two_copies_of_a_directory_stops() -> None:
    world = World(13)
    nodes = world.cluster(2)
    lower, higher = (
        world.start(member(5, at=50 + nonce, incarnation=incarnation(3, nonce)), seeds=[address(0)]) for nonce in (1, 2)
    )
    world.until(lambda: lower.swim.halted, within_ms=5_000)
    world.until(lambda: world.agree([*nodes, higher]), within_ms=5_000)


@pytest.mark.parametrize("size", [2, 5, 30])
def test_leaving_node_is_removed_without_suspicion(size: int) -> None:
    world = World(size)
    nodes = world.cluster(size)
    gone, rest = nodes[1], [nodes[0], *nodes[2:]]
    world.apply(gone, gone.swim.leave(world.now_ms))
    world.run(150)
    world.kill(gone)
    world.until(lambda: world.agree(rest), within_ms=500)
    world.run(3_000)
    assert all(node.changes("n1") == [Change.ALIVE, Change.LEFT] for node in rest)
    assert gone.swim.leave(world.now_ms).outgoing == []
    again = world.start(member(1, boot=2), seeds=[address(0)])
    world.until(lambda: world.agree([*rest, again]), within_ms=2_000)


def test_two_clusters_reject_each_others_datagrams() -> None:
    world = World(15)
    ours = world.cluster(2)
    theirs = [world.start(member(i), seeds=[address(0)], cluster_id=b"d" * 16) for i in (2, 3)]
    for node in theirs:
        node.swim.set_seeds([address(0), address(2)])
    world.run(5_000)
    assert world.agree(ours)
    assert world.agree(theirs)
    assert ours[0].swim.refusals[Refusal.FOREIGN_CLUSTER] > 0


def test_nodes_started_before_their_seeds_join_later() -> None:
    world = World(16)
    nodes = [world.start(member(i), seeds=[address(3)]) for i in range(3)]
    world.run(10_000)
    assert all(len(node.swim.members) == 1 for node in nodes)
    nodes.append(world.start(member(3)))
    world.until(lambda: world.agree(nodes), within_ms=2_000)


def test_memory_is_bounded() -> None:
    """Nodes join and leave under new ids: two hundred nodes with a table of sixteen entries."""
    world = World(17)
    bound = SwimSettings(members_max=16)
    nodes = world.cluster(3, settings=bound)
    for index in range(10, 210):
        guest = world.start(member(index), seeds=[address(0)], settings=bound)
        world.until(lambda guest=guest: world.agree([*nodes, guest]), within_ms=10_000)  # type: ignore[misc]
        if index % 2:
            world.apply(guest, guest.swim.leave(world.now_ms))
            world.run(100)
        world.kill(guest)
        world.until(lambda: world.agree(nodes), within_ms=10_000)
        del world.nodes[guest.swim.me.gossip]
    world.run(5_000)
    for node in nodes:
        assert len(node.swim.members) <= 16
        assert longest_of(node.swim) <= 16


def test_full_table_admits_no_new_member() -> None:
    world = World(18)
    bound = SwimSettings(members_max=3)
    nodes = world.cluster(3, settings=bound)
    late = world.start(member(9), seeds=[address(0)])
    world.run(3_000)
    assert all(len(node.swim.members) == 3 and node.swim.members.refused_full for node in nodes)
    assert not suspicions_of_the_living(nodes)
    assert len(late.swim.members) == 4, "it sees them, they do not see it"


def test_names_of_maximum_length_fit() -> None:
    world = World(19)
    longest = [member(i, node_id=f"{i}" * 128, host="h" * 255, zone="z" * 200, gossip=address(i)) for i in range(4)]
    nodes = [world.start(me, seeds=[address(0)]) for me in longest]
    world.until(lambda: world.agree(nodes), within_ms=10_000)
    world.apply(nodes[0], nodes[0].swim.suspect_now("1" * 128, world.now_ms))
    world.until(lambda: world.agree(nodes), within_ms=1_000)


@given(st.binary(max_size=1_300))
@settings(max_examples=200)
def test_garbage_changes_nothing(payload: bytes) -> None:
    swim = Swim(member(0), cluster_id=CLUSTER, chooser=random.Random(1), now_ms=0)
    effects = swim.receive(payload, address(9), 0)
    assert (effects.events, list(swim.members)) == ([], ["n0"])
    assert swim.refusals == {Refusal.MALFORMED: 1}


def datagram_of(me: Member, counter: int, *members: Member) -> bytes:
    writer = DatagramWriter(
        cluster_id=CLUSTER, sender=me.node_id, incarnation=me.incarnation, counter=counter, digest=0, body=Ping(1)
    )
    for record in members:
        writer.add(record)
    return writer.finish()


def test_replayed_and_stale_datagrams_are_dropped() -> None:
    swim = Swim(member(0), cluster_id=CLUSTER, chooser=random.Random(1), now_ms=0)
    first = datagram_of(member(1), 5, member(1))
    assert len(swim.receive(first, address(1), 0).outgoing) >= 1
    assert swim.receive(first, address(1), 1).outgoing == []
    assert swim.refusals == {Refusal.REPLAYED: 1}
    newer = member(1, boot=2)
    swim.receive(datagram_of(newer, 1, newer), address(1), 2)
    said = datagram_of(member(1), 6, member(7))
    notices = [swim.receive(said, address(1), 500 + i).outgoing for i in range(3)]
    assert [len(notice) for notice in notices][1:] == [0, 0], "told once, not each time"
    assert swim.refusals[Refusal.STALE] == 3
    assert "n7" not in swim.members


@given(st.randoms(use_true_random=False), st.integers(0, 2**32))
@settings(max_examples=30)
def test_live_nodes_agree_after_any_faults(chance: random.Random, seed: int) -> None:
    """Kills, restarts, pauses, partitions, loss and false suspicions, followed by ten seconds without faults."""
    world = World(seed, loss=0.05, duplication=0.05, delay_ms=(0, 10))
    nodes = world.cluster(5)
    boots = dict.fromkeys(range(5), 1)
    for _ in range(chance.randrange(1, 12)):
        index = chance.randrange(5)
        node = nodes[index]
        match chance.randrange(5):
            case 0 if not node.paused:
                world.kill(node)
                boots[index] += 1
                nodes[index] = world.start(member(index, boot=boots[index]), seeds=[address(0), address(1)])
            case 1 if not node.paused:
                world.pause(node, chance.randrange(1, 3_000))
            case 2:
                apart = {address(i) for i in range(5) if chance.random() < 0.4}
                world.cut = lambda a, b, apart=apart: (a in apart) != (b in apart)  # type: ignore[misc]
            case 3:
                world.cut = lambda _a, _b: False
            case _ if not node.paused:
                world.apply(node, node.swim.suspect_now(f"n{chance.randrange(5)}", world.now_ms))
        world.run(chance.randrange(2_000))
    world.cut = lambda _a, _b: False
    world.loss = 0
    world.until(lambda: not any(node.paused for node in nodes), within_ms=3_000)
    world.until(lambda: world.agree(nodes), within_ms=10_000)
    for node in nodes:
        assert not node.swim.halted
        assert all(other.state is MemberState.ALIVE for other in node.swim.members.values())


def test_gossip_of_an_unregistered_start_is_dropped() -> None:
    """A started copy of a running node's directory has a later start that no node has registered."""
    registered = {"n1": incarnation(1)}
    world = World(4)
    receiver = Swim(
        member(0),
        cluster_id=CLUSTER,
        chooser=random.Random(1),
        now_ms=0,
        is_registered=lambda node_id, number: registered.get(node_id, number) == number,
    )
    effects = {}
    for boot in (1, 2):
        sender = Swim(member(1, boot=boot), cluster_id=CLUSTER, chooser=random.Random(boot), now_ms=0)
        sender.set_seeds([address(0)])
        (outgoing, *_) = [each for now in (0, 200, 400) for each in sender.tick(now).outgoing]
        effects[boot] = receiver.receive(outgoing.payload, address(1), world.now_ms)
    assert effects[1].refusal is None
    assert effects[2].refusal is Refusal.NOT_REGISTERED
    assert receiver.members["n1"].incarnation == incarnation(1)


def test_running_node_continues_when_an_unregistered_copy_gossips() -> None:
    running = Swim(
        member(0, boot=3),
        cluster_id=CLUSTER,
        chooser=random.Random(1),
        now_ms=0,
        is_registered=lambda _, number: number == incarnation(3),
    )
    copy = Swim(member(0, boot=4, at=9), cluster_id=CLUSTER, chooser=random.Random(2), now_ms=0)
    copy.set_seeds([address(0)])
    (outgoing, *_) = [each for now in (0, 200, 400) for each in copy.tick(now).outgoing]
    assert running.receive(outgoing.payload, address(9), 0).refusal is Refusal.NOT_REGISTERED
    assert not running.halted
