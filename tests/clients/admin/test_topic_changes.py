"""Topics are created and deleted exactly once, even if the outcome of an attempt is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode

from tidelog import Client
from tidelog.errors import TidelogError, TimedOutError, TopicExistsError, UnknownTopicError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame


class Script:
    """Scripted answers to topic changes: the error code, and whether the node also applies the change."""

    def __init__(self) -> None:
        self.steps: list[tuple[pb.ErrorCode, bool]] = []
        self.meanwhile: Callable[[FakeNode], object] = lambda _: None

    def wrap(self, handle: Callable[[FakeConnection, Frame], None]) -> Callable[[FakeConnection, Frame], None]:
        def on(connection: FakeConnection, frame: Frame) -> None:
            if not self.steps:
                handle(connection, frame)
                return
            code, done = self.steps.pop(0)
            if done:
                reply, connection.reply = connection.reply, lambda *_: None  # type: ignore[method-assign]
                handle(connection, frame)
                connection.reply = reply  # type: ignore[method-assign]
            self.meanwhile(connection.node)
            connection.fail(frame, code)

        return on


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    script = Script()
    for name in ("on_topic_create", "on_topic_delete"):
        monkeypatch.setattr(FakeConnection, name, script.wrap(getattr(FakeConnection, name)))
    yield script
    assert not script.steps, "not all scripted answers were used"


@pytest.mark.parametrize("done", [False, True])
async def test_deletion_with_unknown_outcome_is_retried(client: Client, script: Script, *, done: bool) -> None:
    await client.create_topic("doomed")
    script.steps = [(pb.TIMED_OUT, done)]
    await client.delete_topic("doomed")
    with pytest.raises(UnknownTopicError):
        await client.topic("doomed")


async def test_recreated_topic_is_not_deleted(client: Client, script: Script) -> None:
    old = await client.create_topic("doomed")
    script.steps = [(pb.TIMED_OUT, True)]
    script.meanwhile = lambda node: node.add_topic("doomed", topic_id=b"another topic!!!")
    await client.delete_topic("doomed")
    assert (await client.topic("doomed")).topic_id != old.topic_id


async def test_late_attempt_does_not_delete_a_recreated_topic(
    client: Client, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt is executed after the second one has checked, and the topic was recreated meanwhile."""
    await client.create_topic("doomed")
    script.steps = [(pb.TIMED_OUT, False)]
    describe = FakeConnection.on_topic_describe

    def on(connection: FakeConnection, frame: Frame) -> None:
        describe(connection, frame)
        if not script.steps:
            connection.node.add_topic("doomed", topic_id=b"another topic!!!")

    monkeypatch.setattr(FakeConnection, "on_topic_describe", on)
    await client.delete_topic("doomed")
    assert (await client.topic("doomed")).topic_id == b"another topic!!!"


@pytest.mark.parametrize("done", [False, True])
async def test_creation_with_unknown_outcome_is_retried(client: Client, script: Script, *, done: bool) -> None:
    script.steps = [(pb.TIMED_OUT, done)]
    topic = await client.create_topic("new", partitions=3)
    assert (topic.name, topic.partition_count) == ("new", 3)
    with pytest.raises(TopicExistsError):
        await client.create_topic("new", partitions=3)


async def test_topic_with_other_settings_is_not_mistaken_for_the_created_one(client: Client, script: Script) -> None:
    script.steps = [(pb.TIMED_OUT, False)]
    script.meanwhile = lambda node: node.add_topic("new", partitions=7)
    with pytest.raises(TopicExistsError):
        await client.create_topic("new", partitions=3)


async def test_definite_outcome_stays_definite(client: Client, script: Script) -> None:
    script.steps = [(pb.EPOCH_CHANGING, False)]
    await client.create_topic("first")
    script.steps = [(pb.EPOCH_CHANGING, False)]
    script.meanwhile = lambda node: node.add_topic("second")
    with pytest.raises(TopicExistsError):
        await client.create_topic("second")
    with pytest.raises(UnknownTopicError):
        await client.delete_topic("nowhere")


async def test_unknown_outcome_stays_unknown(node: FakeNode, script: Script) -> None:
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=1) as client:
        script.steps = [(pb.TIMED_OUT, False), *[(pb.EPOCH_CHANGING, False)] * 100]
        with pytest.raises(TidelogError) as caught:
            await client.create_topic("second")
        assert isinstance(caught.value, TimedOutError)
        assert not caught.value.definite
        script.steps.clear()
