"""Which engines a topic may have: its settings are compared with their capabilities."""

from __future__ import annotations

import pytest

from tidelog_broker.metadata.topic_engines import TopicEngines
from tidelog_broker.storage.engine.store import Capabilities
from tidelog_broker.storage.io.errors import EngineMissingError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

CAPABLE = {
    "segment": Capabilities(durable=True, survives_restart=True),
    "memory": Capabilities(durable=False, survives_restart=False),
    "lone": Capabilities(durable=True, survives_restart=True, replicated=False, compactable=False),
}


def capabilities(name: str) -> Capabilities:
    if name not in CAPABLE:
        raise EngineMissingError(name, "it is not here")
    return CAPABLE[name]


ENGINES = TopicEngines(lambda: [*CAPABLE, "broken"], capabilities)


def config(engine: str, **settings: object) -> pb.TopicConfig:
    made = pb.TopicConfig(engine=engine, flush=pb.NEVER, replication_factor=3)
    made.MergeFrom(pb.TopicConfig(**settings))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("engine", ["", "segment", "memory"])
def test_engine_that_can_apply_the_settings_is_accepted(engine: str) -> None:
    ENGINES.check(config(engine))


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (config("memory", flush=pb.ALWAYS), ("flush=always", "set flush to never", "another engine: segment")),
        (
            config("memory", flush=pb.INTERVAL, replication_factor=1),
            ("flush=interval", "another engine: segment, lone"),
        ),
        (config("lone"), ("replication_factor above 1", "set replication_factor to 1", "segment, memory")),
        (config("lone", replication_factor=1, cleanup=pb.COMPACT), ("cleanup=compact", "set cleanup to delete")),
        (config("segment-shared"), ("cannot be chosen by its name", "set file_model to shared, with engine segment")),
        (config("memory", file_model=pb.SHARED), ("file_model=shared", "set file_model to per-partition", "segment")),
        (config("rocks"), ("'rocks' is not installed", "segment, memory, lone, broken", "on every node")),
    ],
    ids=["synced", "synced in time", "replicated", "compacted", "by name", "shared files", "not installed"],
)
def test_engine_that_cannot_apply_the_settings_is_refused(asked: pb.TopicConfig, parts: tuple[str, ...]) -> None:
    with pytest.raises(ProtocolError) as refused:
        ENGINES.check(asked)
    assert refused.value.code == pb.INVALID_REQUEST
    for part in parts:
        assert part in refused.value.message


def test_file_model_is_a_choice_of_the_segment_engine() -> None:
    for engine in ("", "segment"):
        shared = config(engine, file_model=pb.SHARED, flush=pb.ALWAYS, cleanup=pb.COMPACT)
        ENGINES.check(shared)
        ENGINES.check_change(config(engine), shared)
        ENGINES.check_change(shared, config(engine))


def test_topic_with_records_elsewhere_is_not_moved_into_an_engine_that_loses_its_records() -> None:
    ENGINES.check_change(config("memory"), config("memory", retention_ms=5))
    ENGINES.check_change(config("memory"), config("segment"))
    with pytest.raises(ProtocolError, match=r"create another topic with memory.*: segment"):
        ENGINES.check_change(config("segment"), config("memory"))
