from __future__ import annotations

import pytest

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.printable import MESSAGE_CHARS_MAX, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("of \u00e4nn, 10 \u20ac", "of \u00e4nn, 10 \u20ac"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("a\u2028b\u0085c", "a\\u2028b\\x85c"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_a_message_travels_on_one_line_and_is_bounded() -> None:
    sent = ProtocolError(pb.INVALID_REQUEST, "a\nb" + "\x1b" * 1_000_000).to_message()
    assert sent.message.startswith("a\\nb\\x1b")
    assert sent.message.isprintable()
    assert len(sent.message) < 5 * MESSAGE_CHARS_MAX
