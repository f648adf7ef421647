"""Exit codes when standard output is lost: whether it was the result, or a confirmation of completed work."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

from tidelog_cli.base.failures import EXIT_FAILED, EXIT_OK
from tidelog_cli.base.output import note
from tidelog_proto.process.standard_streams import OutputLostError

CONFIRMS: Final = frozenset(
    {
        *("produce", "export", "import"),
        *("topic create", "topic alter", "topic delete", "topic delete-records", "topic compact"),
        *("group reset", "group delete"),
        *("key revoke", "user create", "user password", "user delete"),
        *("acl grant", "acl revoke", "quota set", "quota remove"),
        *(
            "cluster init",
            "cluster drain",
            "cluster undrain",
            "cluster remove",
            "cluster rebalance",
            "cluster finalize",
        ),
        "cluster unsafe-recover",
        *("certs init", "certs issue", "certs revoke"),
        *("context add", "context use", "context remove"),
        "spark bundle",
    }
)
"""Commands that change something and print what they have done: a repetition would do it twice."""

PRINTS: Final = frozenset(
    {
        *("up", "consume", "sql", "topic list", "topic describe", "group list", "group describe", "group lag"),
        *("key new", "key create", "key list", "user list", "acl list", "acl test", "quota list"),
        *("cluster status", "context list", "doctor", "top", "deploy"),
    }
)
"""Commands whose result is what they print."""


def check_standard_output() -> None:
    """Have failed writes to standard output raise `OutputLostError`, and those to standard error do nothing.

    No other file raises the former; and a command keeps its exit code where its notes cannot be written.
    """
    sys.stdout, sys.stderr = _over(sys.stdout, _Checked), _over(sys.stderr, _Unfailing)


def _over(stream: TextIO, raw: type[io.FileIO]) -> TextIO:
    """Return a stream as the given one whose bytes go through `raw`."""
    try:
        assert isinstance(stream, io.TextIOWrapper)
        descriptor = stream.fileno()
        stream.flush()
    except (AssertionError, OSError, ValueError):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(raw(descriptor, "w", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Unfailing(io.FileIO):
    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # None: it would block, as FileIO returns
        try:
            return super().write(data)
        except OSError:
            return len(data)


class _Checked(io.FileIO):
    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # None: it would block, as FileIO returns
        try:
            return super().write(data)
        except OSError as error:
            raise OutputLostError(error) from error


def leave_quietly() -> None:
    """Drop what cannot be written, before the interpreter tries again at its end and exits with a code of its own."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_lost(words: Sequence[str], error: OutputLostError) -> int:
    """Say what it means for a command that its standard output was lost, and return its exit code.

    Args:
        words: the command and its arguments.
        error: why it was lost.
    """
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in CONFIRMS), None)
    if name is None:
        if not error.reader_gone:  # a reader that has enough, such as `head`, is not a failure to report
            note(f"tidelog: standard output could not be written: {error.strerror}")
        return EXIT_FAILED
    note(
        f"tidelog: {name} is done, do not repeat it; only its confirmation could not be written to standard output: "
        f"{error.strerror}"
    )
    return EXIT_OK
