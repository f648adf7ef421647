from __future__ import annotations

import logging

from tidelog_broker.base.log_lines import LINE_CHARS_MAX, LineFormatter


def formatted(message: str, *arguments: object) -> str:
    record = logging.LogRecord("n", logging.INFO, "file", 1, message, arguments, None)
    return LineFormatter("%(levelname)s %(message)s").format(record)


def test_a_message_is_one_printable_line_and_no_longer_than_it_may_be() -> None:
    assert formatted("plain %s", "word") == "INFO plain word"
    assert formatted("of %s", "a\nERROR b\x1b[31m\u202e") == "INFO of a\\nERROR b\\x1b[31m\\u202e"
    assert len(formatted("%s", "x" * 1_000_000)) < LINE_CHARS_MAX + 100


def test_a_traceback_keeps_its_lines() -> None:
    error = ValueError("of a test")
    record = logging.LogRecord("n", logging.ERROR, "file", 1, "failed", (), (ValueError, error, None))
    assert LineFormatter("%(message)s").format(record) == "failed\nValueError: of a test"
