"""Refusal, at the node that takes a request, of settings that a registered node would ignore (`metadata.features`)."""

from __future__ import annotations

from tidelog_broker.broker import Broker
from tidelog_broker.metadata.features import TOPIC_FEATURES, Record
from tidelog_broker.server.handlers.metadata import is_current
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


async def check_features(broker: Broker, asked: Record) -> None:
    """See that every registered node supports what is asked for, by what `__meta` has by now where it is refused.

    Raises:
        ProtocolError: as `FeatureGate.check`.
    """
    try:
        broker.features.check(asked)
    except ProtocolError:
        if broker.cluster.is_alone or not await is_current(broker):
            raise
        broker.features.check(asked)


def new_topic(asked: pb.TopicCreate) -> pb.TopicRecord:
    """Return the settings that a new topic is to have."""
    return pb.TopicRecord(name=asked.name, config=asked.config)


def changed_topic(broker: Broker, change: pb.TopicAlter) -> pb.TopicRecord:
    """Return the settings of a topic that a change sets and that the base set lacks."""
    standing = broker.topics.find(change.name)
    record = pb.TopicRecord(name=change.name, topic_id=b"" if standing is None else standing.topic_id)
    for field in TOPIC_FEATURES:
        if change.HasField(field):
            setattr(record.config, field, getattr(change, field))
    return record


def new_security_record(asked: pb.SecurityChange) -> pb.SecurityRecord:
    """Return what a change adds to the records, which has no id yet."""
    match asked.WhichOneof("change"):
        case "create_user":
            return pb.SecurityRecord(id="user", user=asked.create_user)
        case "grant":
            return pb.SecurityRecord(id="rule", rule=asked.grant)
        case "set_quota":
            return pb.SecurityRecord(id="quota", quota=asked.set_quota)
        case _:
            return pb.SecurityRecord()
