from __future__ import annotations

import logging

import pytest

from tidelog_proto.process.log_rate_limit import RateLimitedLog


def test_lines_beyond_the_limit_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    seldom = RateLimitedLog(logging.getLogger("t"), level=logging.WARNING, lines=2, every_s=60, now_s=lambda: now_s)
    for number in range(5):
        seldom.say("line %d", number)
    now_s += 59
    seldom.say("line 5")
    assert caplog.messages == ["line 0", "line 1"]
    now_s += 1
    seldom.say("line %d", 6)
    assert caplog.messages[2:] == ["4 similar messages suppressed", "line 6"]
    now_s += 600
    seldom.say("line 7")
    assert caplog.messages[4:] == ["line 7"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
