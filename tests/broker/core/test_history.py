"""What a replica fetches when retention has deleted some of what it lacks."""

from __future__ import annotations

from tests.broker.core.test_replica import NODES, Stage

from tidelog_broker.core.effects import AppendFill, SetAside
from tidelog_broker.core.ports import Plan, Timing
from tidelog_broker.core.replica import Replica
from tidelog_proto import broker_pb2 as pb

TEXTS = ("one", "two", "three", "four", "five")


def retain(stage: Stage, owner: Replica, offset: int) -> None:
    """Delete what lies below `offset` wherever it is held; only the owner has been told."""
    for node in {*NODES} - stage.down:
        stage.logs[node].cut_front(owner.active.epoch, offset)
    owner.raise_log_start(offset, stage.now_ms)


def left_behind(stage: Stage, *, holds: int, log_start: int, in_memory: bool = False) -> tuple[Replica, Replica]:
    """Return the owner and a follower that is down and holds less than the others, who have deleted their front."""
    owner = stage.owner()
    if not in_memory:
        assert owner.ownership._pushes is not None
        owner.ownership._pushes.timing = Timing(window_bytes=0)
    away = next(replica for node, replica in stage.replicas.items() if node != owner.node_id)
    for text in TEXTS[:holds]:
        stage.publish(text)
    stage.down = {away.node_id}
    for text in TEXTS[holds:]:
        stage.publish(text)
    retain(stage, owner, log_start)
    return owner, away


def test_a_follower_that_lacks_what_is_deleted_follows_the_next_epoch_and_fills_the_rest() -> None:
    for holds in range(3):
        stage = Stage()
        owner, away = left_behind(stage, holds=holds, log_start=3)
        epoch = owner.active.epoch
        stage.down = set()
        stage.later(1000)
        assert (stage.owner(), owner.active.epoch) == (owner, epoch + 1)
        assert list(owner.active.placement) == list(NODES)
        assert (away.role, away.log_start, away.history.incomplete) == ("follower", 3, set())
        assert stage.logs[away.node_id].content() == stage.logs[owner.node_id].content()
        assert len(stage.logs[away.node_id].content()) == 2
        stage.publish("six")
        other = next(node for node in NODES if stage.replicas[node] not in {owner, away})
        stage.down = {other}
        stage.publish("seven")
        assert owner.high_watermark == 7, "it acknowledges"
        stage.down = set()
        stage.later(3000)
        assert owner.active.epoch == epoch + 1, "one roll-over is enough"


def test_a_follower_that_has_what_is_deleted_needs_no_other_epoch() -> None:
    stage = Stage()
    owner, away = left_behind(stage, holds=3, log_start=3)
    epoch = owner.active.epoch
    stage.down = set()
    stage.later(1000)
    assert owner.active.epoch == epoch
    assert (away.tail.durable.offset, away.log_start) == (5, 3)


def test_a_follower_that_lacks_what_is_deleted_but_still_in_memory_needs_no_other_epoch() -> None:
    stage = Stage()
    owner, away = left_behind(stage, holds=1, log_start=3, in_memory=True)
    epoch = owner.active.epoch
    stage.down = set()
    stage.later(1000)
    assert owner.active.epoch == epoch
    assert away.tail.durable.offset == 5


def test_an_old_question_ends_no_epoch() -> None:
    stage = Stage()
    owner, away = left_behind(stage, holds=3, log_start=3)
    epoch = owner.active.epoch
    stage.down = set()
    stage.later(1000)
    late = away.about(pb.Backfill(from_offset=0), epoch)
    owner.receive(away.node_id, late, (), stage.now_ms)
    stage.later(1000)
    assert owner.active.epoch == epoch, "it has acknowledged more than that since"


def test_a_new_owner_that_lacks_what_is_deleted_is_told_where_the_log_begins() -> None:
    """Nobody appends to it: only what it asks for tells."""
    stage = Stage()
    owner, away = left_behind(stage, holds=1, log_start=4)
    stage.down = set()
    owner.roll_over(Plan(away.node_id, NODES, 2), stage.now_ms)
    stage.later(3000)
    assert stage.owner() is away
    assert (away.log_start, away.history.incomplete) == (4, set())
    assert stage.logs[away.node_id].content() == stage.logs[owner.node_id].content()
    stage.publish("six")
    assert away.high_watermark == 6


def test_retention_that_passes_a_copy_while_it_is_filled_has_it_begun_anew() -> None:
    stage = Stage()
    owner, away = left_behind(stage, holds=1, log_start=2)
    epoch = owner.active.epoch
    stage.down = set()
    away.raise_log_start(2, stage.now_ms)
    owner.roll_over(Plan(owner.node_id, NODES, 2), stage.now_ms)
    while away.active.epoch == epoch:
        stage.step()
    stage.step()
    pull = away.history._fill_pull
    assert pull is not None
    assert pull.digest_unknown
    for node in (node for node in NODES if node != away.node_id):
        stage.logs[node].cut_front(epoch, 4)
        stage.replicas[node].raise_log_start(4, stage.now_ms)
    stage.later(1000)
    assert (away.log_start, away.history.incomplete) == (4, set())
    assert stage.logs[away.node_id].content() == stage.logs[owner.node_id].content()


def test_a_copy_that_retention_passes_to_its_end_is_wanted_no_more() -> None:
    stage = Stage()
    owner, away = left_behind(stage, holds=1, log_start=2)
    epoch = owner.active.epoch
    stage.down = set()
    owner.roll_over(Plan(owner.node_id, NODES, 2), stage.now_ms)
    while away.active.epoch == epoch:
        stage.step()
    assert away.history.incomplete
    away.raise_log_start(5, stage.now_ms)
    assert not away.history.incomplete
    assert away.history._fill_pull is None


def test_a_digest_that_does_not_fit_what_follows_it_is_not_trusted() -> None:
    stage = Stage()
    owner, away = left_behind(stage, holds=1, log_start=3)
    front = stage.logs[owner.node_id].fronts[owner.active.epoch]
    epoch = owner.active.epoch
    stage.down = set()
    stage.logs[owner.node_id].fronts[epoch] = front._replace(digest=front.digest ^ 1)
    seen: list[AppendFill | SetAside] = []
    do = stage.logs[away.node_id].do

    def watch(effect: object) -> None:
        if isinstance(effect, AppendFill | SetAside):
            seen.append(effect)
        do(effect)  # type: ignore[arg-type]  # it is one

    stage.logs[away.node_id].do = watch  # type: ignore[method-assign]  # of this one log
    stage.later(1000)
    assert all(effect.start_digest == front.digest for effect in seen if isinstance(effect, AppendFill))
    assert not away.history.incomplete, "another one told the right digest"
