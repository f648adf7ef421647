"""Refusal, at the node that takes a request, of settings that a registered node would ignore (`metadata.features`)."""

from __future__ import annotations

from tidelog_broker.broker import Broker
from tidelog_broker.metadata.features import Record
from tidelog_broker.server.handlers.metadata import is_current
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.topic_settings import TOPIC_SETTINGS


async def check_features(broker: Broker, record: Record) -> None:
    """Check that every registered node supports the settings of a record.

    This node reads the newest `__meta` before it refuses, because its own copy may lag behind an upgrade of the nodes.

    Raises:
        ProtocolError: see `FeatureGate.check`.
    """
    try:
        broker.features.check(record)
    except ProtocolError:
        if broker.cluster.is_alone or not await is_current(broker):
            raise
        broker.features.check(record)


def new_topic(request: pb.TopicCreate) -> pb.TopicRecord:
    """Return the record of a new topic's settings."""
    record = pb.TopicRecord(name=request.name, config=request.config)
    record.config.typed = request.HasField("schema")
    return record


def changed_topic(broker: Broker, change: pb.TopicAlter) -> pb.TopicRecord:
    """Return a topic record that contains, of the changed settings, only those that need a feature."""
    current = broker.topics.find(change.name)
    record = pb.TopicRecord(name=change.name, topic_id=b"" if current is None else current.topic_id)
    for name, setting in TOPIC_SETTINGS.items():
        if (setting.feature or setting.choice_features) and change.HasField(name):
            setattr(record.config, name, getattr(change, name))
    return record


def new_security_record(change: pb.SecurityChange) -> pb.SecurityRecord:
    """Return the record that a change adds, for `check_features`; empty for a change that needs no features."""
    match change.WhichOneof("change"):
        case "create_user":
            return pb.SecurityRecord(id="user", user=change.create_user)
        case "grant":
            return pb.SecurityRecord(id="rule", rule=change.grant)
        case "set_quota":
            return pb.SecurityRecord(id="quota", quota=change.set_quota)
        case _:
            return pb.SecurityRecord()
