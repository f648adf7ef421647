from __future__ import annotations

import pytest

from tidelog import errors
from tidelog_cli.base import failures
from tidelog_cli.base.failures import CommandFailed, describe, exit_code_of


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CommandFailed("no", failures.EXIT_USAGE), failures.EXIT_USAGE, "no"),
        (errors.NodeUnreachableError("cannot reach x"), failures.EXIT_CANNOT_CONNECT, "cannot reach x"),
        (errors.ConnectionLostError("broke"), failures.EXIT_CANNOT_CONNECT, "broke"),
        (errors.RequestTimeoutError("too slow"), failures.EXIT_OUTCOME_UNKNOWN, "too slow"),
        (errors.UnknownTopicError("no topic 'x'\n  create it"), failures.EXIT_FAILED, "no topic 'x' create it"),
        (FileNotFoundError(2, "No such file", "a.txt"), failures.EXIT_FAILED, "[Errno 2] No such file: 'a.txt'"),
        (KeyError("x"), failures.EXIT_FAILED, "KeyError: 'x'"),
        (RuntimeError(), failures.EXIT_FAILED, "RuntimeError"),
    ],
)
def test_every_error_is_one_line_and_a_code(error: Exception, code: int, line: str) -> None:
    assert (describe(error), exit_code_of(error)) == (line, code)
