from __future__ import annotations

import logging

from tidelog_broker.base.log_lines import LINE_CHARS_MAX, PERIOD_S, REPEATED_MAX, LineFormatter, RepeatFilter


def formatted(message: str, *arguments: object) -> str:
    record = logging.LogRecord("n", logging.INFO, "file", 1, message, arguments, None)
    return LineFormatter("%(levelname)s %(message)s").format(record)


def test_message_is_one_printable_line_of_limited_length() -> None:
    assert formatted("plain %s", "word") == "INFO plain word"
    assert formatted("of %s", "a\nERROR b\x1b[31m\u202e") == "INFO of a\\nERROR b\\x1b[31m\\u202e"
    assert len(formatted("%s", "x" * 1_000_000)) < LINE_CHARS_MAX + 100


def test_traceback_keeps_its_lines() -> None:
    error = ValueError("of a test")
    record = logging.LogRecord("n", logging.ERROR, "file", 1, "failed", (), (ValueError, error, None))
    assert LineFormatter("%(message)s").format(record) == "failed\nValueError: of a test"


def test_repeated_warnings_are_suppressed_and_counted() -> None:
    now_s = 0.0
    repeats = RepeatFilter(lambda: now_s)

    def passed(line: int, level: int = logging.WARNING, name: str = "n") -> str | None:
        record = logging.LogRecord(name, level, "file", line, "no space in %s", ("t",), None)
        return record.getMessage() if repeats.filter(record) else None

    assert [passed(1) for _ in range(50)].count("no space in t") == REPEATED_MAX
    assert passed(2) == "no space in t", "another place"
    assert all(passed(1, level) for level in (logging.INFO, logging.ERROR, logging.CRITICAL) for _ in range(50))
    now_s = PERIOD_S
    assert passed(1) == f"no space in t ({50 - REPEATED_MAX} similar messages suppressed)"
    assert passed(1) == "no space in t"
