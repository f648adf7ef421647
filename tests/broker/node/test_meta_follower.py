from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.founded import Founded

from tidelog_broker.core.topics import META_KEY, META_TOPIC_ID
from tidelog_broker.node import meta_follower
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.node.meta_snapshot import load_meta_snapshot, save_meta_snapshot


def topics_of(founded: Founded, name: str) -> list[str]:
    return [record.name for record in founded.nodes[name].broker.topics.live() if not record.name.startswith("__")]


async def test_topic_changes_reach_every_node(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    await peer.create("kept")
    await peer.create("passing")
    await peer.delete("passing")
    for name in "abc":
        await founded.until(lambda name=name: topics_of(founded, name) == ["kept"], f"{name} does not follow")  # type: ignore[misc]


async def test_node_without_a_copy_reads_meta_from_the_owner(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    joiner = await founded.join()
    assert "d" not in (joiner.broker.routes.get(META_KEY) or (0, "", ()))[2]
    peer = await founded.peer("a")
    await peer.create("one")
    await founded.until(lambda: topics_of(founded, "d") == ["one"], "the joiner does not follow")
    topic = await peer.create("two", replication_factor=2)
    await founded.until(lambda: topics_of(founded, "d") == ["one", "two"], "the joiner does not continue to follow")
    await founded.publish(await founded.peer("d"), topic.topic_id, b"v")


async def test_saved_meta_state_is_used_when_no_node_is_reachable(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(replication_factor=3)
    await founded.publish(peer, topic.topic_id, b"v")
    await founded.until(lambda: topics_of(founded, "b") == ["t"], "b does not follow")
    applied = founded.nodes["b"].broker.meta_log.applied
    path = founded.nodes["b"].dir.meta_state

    def saved() -> bool:
        snapshot = load_meta_snapshot(RealFileSystem(), path)
        return snapshot is not None and snapshot.applied >= applied

    await founded.until(saved, "b wrote nothing down")
    for name in "abc":
        await founded.stop(name)
    alone = await founded.start("b")
    assert topics_of(founded, "b") == ["t"]
    assert [record.node_id for record in alone.broker.nodes.live()] == ["a", "b", "c"]
    assert alone.broker.topics.get(META_TOPIC_ID) is not None
    await founded.found("a", "c")
    await founded.settled()
    partition = founded.nodes["b"].broker.partitions.get(topic.topic_id, 0)
    await founded.until(lambda: partition.state.readable_end == 1, "the committed end is unknown after the restart")
    assert await (await founded.peer("b")).read_all(topic.topic_id) == [b"v"]


async def test_follower_continues_after_a_full_worker_queue(
    founded: Founded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the node would miss all that comes after, for as long as it runs."""
    caplog.set_level("INFO")
    await founded.found()
    await founded.settled()
    workers = founded.nodes["b"].broker.threads.io
    usual, refused = workers.call, list[object]()

    async def full_once(key: int, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if work is save_meta_snapshot and not refused:
            refused.append(work)
            raise WorkersFullError("65536 tasks are queued for a thread of 'io'")
        return await usual(key, work, *args, **named)

    monkeypatch.setattr(workers, "call", full_once)
    peer = await founded.peer("a")
    await peer.create("one")
    await founded.until(lambda: bool(refused), "nothing is written down")
    await peer.create("two")
    await founded.until(lambda: topics_of(founded, "b") == ["one", "two"], "b follows no more")
    assert "tasks are queued" in caplog.text


async def test_a_failed_save_is_retried_without_a_later_change(
    founded: Founded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next start would begin with older metadata, although the disk has recovered."""
    caplog.set_level("INFO")
    monkeypatch.setattr(meta_follower, "UNSAVED_AGAIN_S", 0.05)
    await founded.found()
    await founded.settled()
    node = founded.nodes["b"]
    workers, path = node.broker.threads.io, node.dir.meta_state
    usual, failures = workers.call, list[object]()
    is_full = True

    async def on_a_full_disk(key: int, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if work is save_meta_snapshot and is_full:
            failures.append(work)
            raise OSError(28, "No space left on device")
        return await usual(key, work, *args, **named)

    monkeypatch.setattr(workers, "call", on_a_full_disk)
    peer = await founded.peer("a")
    await peer.create("one")
    await founded.until(lambda: topics_of(founded, "b") == ["one"], "b does not follow")
    applied = node.broker.meta_log.applied
    await founded.until(lambda: len(failures) >= 3, "the save is not retried")
    assert node.broker.meta_log.applied == applied, "`__meta` has not changed since"
    assert caplog.text.count("cannot save the state of __meta") == 1
    is_full = False

    def saved() -> bool:
        snapshot = load_meta_snapshot(RealFileSystem(), path)
        return snapshot is not None and snapshot.applied >= applied

    await founded.until(saved, "the state is not saved on the disk that has recovered")


async def test_a_large_state_is_saved_again_after_a_multiple_of_its_time(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_follower, "SAVE_S_LONG", -1.0)
    monkeypatch.setattr(meta_follower, "SAVE_SHARE", 1e9)
    await founded.found()
    await founded.settled()
    node = founded.nodes["a"]
    follower = meta_follower.MetaFollower(node.broker)
    await follower.save()
    first = follower.attempted
    peer = await founded.peer("a")
    await peer.create("later")
    await founded.until(lambda: topics_of(founded, "a") == ["later"], "a does not follow")
    await follower.save()
    assert follower.attempted == first, "the state is saved for each change"
    follower.may_save_s = 0.0
    await follower.save()
    assert follower.attempted == node.broker.meta_log.applied
