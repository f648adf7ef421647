"""Which engines a topic may have: its settings are compared with their capabilities."""

from __future__ import annotations

import pytest

from tidelog_broker.metadata.topic_engines import TopicEngines
from tidelog_broker.storage.engine.store import Capabilities
from tidelog_broker.storage.engines.stores import engine_named, engine_names
from tidelog_broker.storage.io.errors import EngineMissingError
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

CAPABLE = {
    "segment": Capabilities(durable=True, survives_restart=True),
    "memory": Capabilities(durable=False, survives_restart=False, write_behind=True),
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


def test_records_in_memory_may_be_written_in_the_background() -> None:
    ENGINES.check(config("memory", flush=pb.ASYNC))


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
        (
            config("", flush=pb.ASYNC),
            ("engine segment cannot write records in the background", "flush=async", "another engine: memory"),
        ),
        (config("lone", flush=pb.ASYNC, replication_factor=1), ("set flush to never", "another engine: memory")),
        (config("memory-async"), ("cannot be set by its name", "engine to memory and flush to async")),
        (config("segment-shared"), ("cannot be set by its name", "set file_model to shared, with engine segment")),
        (config("memory", file_model=pb.SHARED), ("file_model=shared", "set file_model to per-partition", "segment")),
        (config("segment", file_model=pb.SHARED, flush=pb.ASYNC), ("flush=async", "set flush to never")),
        (config("rocks"), ("'rocks' is not installed", "segment, memory, lone, broken", "on every node")),
    ],
    ids=[
        *(
            "synced",
            "synced in time",
            "replicated",
            "compacted",
            "async",
            "async too",
            "by its name",
            "shared by its name",
        ),
        *("shared files", "async in shared files", "not installed"),
    ],
)
def test_engine_that_cannot_apply_the_settings_is_refused(asked: pb.TopicConfig, parts: tuple[str, ...]) -> None:
    with pytest.raises(ProtocolError) as refused:
        ENGINES.check(asked)
    assert refused.value.code == pb.INVALID_REQUEST
    for part in parts:
        assert part in refused.value.message


def test_rocksdb_stores_one_copy_and_the_refusal_names_the_engines_that_store_more() -> None:
    engines = TopicEngines(engine_names, lambda name: engine_named(Disk(), name).capabilities)
    engines.check(config("rocksdb", replication_factor=1, flush=pb.ALWAYS, cleanup=pb.COMPACT))
    with pytest.raises(ProtocolError, match=r"engine rocksdb cannot store replicated partitions.*: segment, memory$"):
        engines.check(config("rocksdb"))


def test_file_model_is_a_choice_of_the_segment_engine() -> None:
    for engine in ("", "segment"):
        ENGINES.check(config(engine, file_model=pb.SHARED, flush=pb.ALWAYS, cleanup=pb.COMPACT))


def test_defaults_of_the_node_apply_to_what_a_new_topic_does_not_set() -> None:
    engines = TopicEngines(lambda: CAPABLE, capabilities, "lone")
    unset, chosen = pb.TopicConfig(), pb.TopicConfig(engine="segment")
    assert (engines.fill_in(unset), unset.engine) == (True, "lone")
    assert (engines.fill_in(chosen), chosen.engine) == (False, "segment")


@pytest.mark.parametrize(
    ("requested", "file_model"),
    [
        (pb.TopicConfig(), pb.SHARED),
        (pb.TopicConfig(engine="segment"), pb.SHARED),
        (pb.TopicConfig(file_model=pb.PER_PARTITION), pb.PER_PARTITION),
        (pb.TopicConfig(engine="memory", flush=pb.NEVER), pb.FILE_MODEL_UNSPECIFIED),
    ],
)
def test_file_model_of_the_node_applies_to_topics_in_segments(requested: pb.TopicConfig, file_model: int) -> None:
    engines = TopicEngines(lambda: CAPABLE, capabilities, shares_files=True)
    is_changed = requested.file_model != file_model
    assert (engines.fill_in(requested), requested.file_model) == (is_changed, file_model)
    engines.check(requested)
