"""Exit codes for failed writes to standard output, which depend on whether it carries results or confirmations."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, TextIO

from typer.core import TyperCommand, TyperGroup

from tidelog_cli.base.failures import EXIT_FAILED, EXIT_OK
from tidelog_cli.base.output import note
from tidelog_proto.process.standard_streams import OutputLostError

CONFIRMS: Final = frozenset(
    {
        *("produce", "export", "import"),
        *("topic create", "topic alter", "topic delete", "topic delete-records", "topic compact"),
        "topic schema evolve",
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
"""Commands that change something and confirm it on standard output: if the confirmation is lost, the exit code is still
0, so that scripts do not repeat the command."""

PRINTS: Final = frozenset(
    {
        *("up", "consume", "get", "sql", "topic list", "topic describe", "group list", "group describe", "group lag"),
        *("key new", "key create", "key list", "user list", "acl list", "acl test", "quota list"),
        *("topic schema show", "topic schema check"),
        *("cluster status", "context list", "doctor", "top", "deploy"),
    }
)
"""Commands that fail if their output is lost, because the output is their result."""

changes: Final[ContextVar[bool]] = ContextVar("changes", default=False)
"""Whether the command ran and its output confirms a change: not for `--help`, a question or a dry run."""


def track_runs(group: TyperGroup) -> None:
    """Make every command in a tree set `changes` when its function is called."""
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            track_runs(command)
        elif isinstance(command, TyperCommand) and command.callback is not None:
            command.callback = _tracked(command.callback)


def _tracked(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        changes.set(True)
        return function(*arguments, **options)

    return run


def check_standard_output() -> None:
    """Make failed writes to standard output raise `OutputLostError`, and ignore those to standard error.

    The exit code must not depend on standard error.
    """
    sys.stdout, sys.stderr = _over(sys.stdout, _Checked), _over(sys.stderr, _Unfailing)


def _over(stream: TextIO, raw: type[io.FileIO]) -> TextIO:
    """Return a text stream like `stream` that writes through a `raw` file; `stream` itself if it has no descriptor."""
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
    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # None if it would block
        try:
            return super().write(data)
        except OSError:
            return len(data)


class _Checked(io.FileIO):
    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # None if it would block
        try:
            return super().write(data)
        except OSError as error:
            raise OutputLostError(error) from error


def leave_quietly() -> None:
    """Flush standard output; if that fails, discard the unwritten output.

    Otherwise the interpreter would try to write it again at exit, and exit with its own code.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_lost(words: Sequence[str], error: OutputLostError, *, has_run: bool) -> int:
    """Report lost standard output and return the command's exit code.

    Args:
        words: the command and its arguments.
        has_run: whether the command's function was called and changes something (see `changes`).
    """
    name = next((name for name in (" ".join(words[:3]), " ".join(words[:2]), *words[:1]) if name in CONFIRMS), None)
    if name is None or not has_run:
        if not error.reader_gone:  # A reader such as `head` may stop early.
            note(f"tidelog: standard output could not be written: {error.strerror}; the output is incomplete")
        return EXIT_FAILED
    note(
        f"tidelog: {name} succeeded, do not repeat it; its confirmation could not be written to standard output: "
        f"{error.strerror}"
    )
    return EXIT_OK
