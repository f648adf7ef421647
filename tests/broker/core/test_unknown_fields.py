"""Fields that a later version has added to a message."""

from __future__ import annotations

import pytest

from tidelog_broker.core.unknown_fields import refuse_unknown_fields, unknown_fields
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

VARINT_90 = b"\xd0\x05\x07"
"""Field 90 with the value 7."""


def test_fields_of_nested_and_repeated_messages_are_found() -> None:
    config = pb.TopicConfig.FromString(pb.TopicConfig(partitions=3).SerializeToString() + VARINT_90)
    create = pb.TopicCreate(name="t", config=config)
    assert unknown_fields(create) == ["field 90 of TopicConfig"]
    rule = pb.AccessRule.FromString(VARINT_90)
    reply = pb.SecurityListReply(rules=[pb.AccessRule(), rule, rule])
    assert unknown_fields(reply) == ["field 90 of AccessRule"]
    assert unknown_fields(pb.TopicCreate(name="t", config=pb.TopicConfig(partitions=3))) == []


def test_change_with_unknown_fields_is_refused_by_number() -> None:
    with pytest.raises(ProtocolError, match=r"does not know field 90 of TopicAlter.*upgrade the nodes") as refused:
        refuse_unknown_fields(pb.TopicAlter.FromString(pb.TopicAlter(name="t").SerializeToString() + VARINT_90))
    assert refused.value.code == pb.INVALID_REQUEST
    refuse_unknown_fields(pb.TopicAlter(name="t", retention_ms=5))
