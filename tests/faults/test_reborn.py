"""Readers of a recreated topic learn from their records which one it is; the name means one topic at a time."""

from __future__ import annotations

from random import Random

from tests.faults.history import History, Key, label_of
from tests.faults.reborn import NAME, Participation, Session
from tests.faults.values import CONTROL, number_of
from tests.faults.world import World

OLD, NEW = label_of(NAME, bytes(16)), label_of(NAME, b"\1" * 16)


def world() -> World:
    made = World([], [], History(), Random(0), 1)
    made.history.meant_for.update({1: OLD, 2: NEW})
    return made


def test_a_session_keeps_records_until_its_topic_is_known() -> None:
    shared = world()
    session = Session(shared, "reader")
    session.take(0, 0, [CONTROL, number_of(7, 0)])
    assert shared.history.runs == {}
    session.take(1, 4, [number_of(2, 0)])
    session.take(0, 2, [number_of(2, 1)])
    assert session.label == NEW
    assert shared.history.read_to("reader", Key(NEW, 0)) == 3
    assert shared.history.read_to("reader", Key(NEW, 1)) == 5
    assert shared.history.crossed == []


def test_a_session_that_gets_into_a_namesake_is_found() -> None:
    shared = world()
    session = Session(shared, "reader")
    session.take(0, 0, [number_of(1, 0)])
    session.take(0, 1, [number_of(1, 1), number_of(2, 0)])
    assert shared.history.crossed == [f"reader reads {OLD} and got a record of {NEW} at 0/1"]
    assert shared.history.read_to("reader", Key(OLD, 0)) == 1


def test_the_name_means_one_topic_until_a_client_begins_to_delete_it() -> None:
    shared = world()
    standing = Participation(shared)
    assert not standing.since(standing.times)
    standing.made(bytes(16))
    times = standing.times
    assert standing.since(times)
    assert [str(key) for key in standing.keys] == [f"{OLD}/0", f"{OLD}/1"]
    standing.doomed()
    assert not standing.since(times)
    assert shared.history.gone == {OLD}
    standing.made(b"\1" * 16)
    assert (standing.label, standing.since(times), standing.since(standing.times)) == (NEW, False, True)
