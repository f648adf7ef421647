from __future__ import annotations

import pytest

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import GROUP_NAME_BYTES_MAX, TOPIC_NAME_CHARS_MAX
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC, check_group_name, check_topic_name, may_begin_topic_name


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "_x", "x__", "0", "x" * TOPIC_NAME_CHARS_MAX])
def test_good_topic_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "a\n",
        "\u00e9",
        "a\0",
        "x" * (TOPIC_NAME_CHARS_MAX + 1),
        META_TOPIC,
        OFFSETS_TOPIC,
        "__",
    ],
)
def test_bad_topic_names(name: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_topic_name(name)
    assert refused.value.code == pb.INVALID_TOPIC


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("", True),
        ("_", True),
        (".", True),
        ("a-", True),
        ("x" * TOPIC_NAME_CHARS_MAX, True),
        ("__", False),
        ("a*", False),
        ("a/", False),
        ("x" * (TOPIC_NAME_CHARS_MAX + 1), False),
    ],
)
def test_prefixes_of_topic_names(text: str, may: bool) -> None:
    assert may_begin_topic_name(text) == may


@pytest.mark.parametrize("name", ["g", "a group / of mine", "\u00e9" * (GROUP_NAME_BYTES_MAX // 2)])
def test_good_group_names(name: str) -> None:
    check_group_name(name)


@pytest.mark.parametrize("name", ["", "\n", "a\0", "\ud800", "\u00e9" * (GROUP_NAME_BYTES_MAX // 2 + 1)])
def test_bad_group_names(name: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_group_name(name)
    assert refused.value.code == pb.INVALID_REQUEST
