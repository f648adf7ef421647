"""Exit codes of commands, and one-line error messages.

    0    success
    1    refused or failed
    2    usage error
    3    cannot connect, or connection lost
    4    outcome unknown: the operation may or may not have happened
    74   `node`: its disk failed
    78   `node`: its id was removed, or is used by another process
    130  interrupted with Ctrl-C

Scripts need to distinguish "try later" (3) from "check first" (4).
"""

from __future__ import annotations

from typing import Final

from tidelog.errors import BadReplyError, ConnectionLostError, NodeUnreachableError, TidelogError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_CANNOT_CONNECT: Final = 3
EXIT_OUTCOME_UNKNOWN: Final = 4
EXIT_INTERRUPTED: Final = 130

EXIT_CODES_HELP: Final = (
    "Exit codes: 0 success, 1 refused or failed, 2 usage error, 3 cannot connect, "
    "4 outcome unknown (it may have happened), 130 interrupted; `tidelog node` also 74 disk failed, "
    "78 node id removed or used by another process."
)


class CommandFailed(Exception):  # noqa: N818 - the exception that ends a command
    """Ends a command with a line on standard error and an exit code.

    Attributes:
        exit_code: one of the exit codes that the module lists.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def describe(error: BaseException) -> str:
    """Return the line to show for an error; errors of other libraries, except OSError, are prefixed with their type."""
    text = " ".join(str(error).split())
    ours = type(error).__module__.startswith("tidelog")
    if text and (ours or isinstance(error, OSError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    if isinstance(error, (NodeUnreachableError, ConnectionLostError, BadReplyError)):
        return EXIT_CANNOT_CONNECT
    if isinstance(error, TidelogError) and not error.definite:
        return EXIT_OUTCOME_UNKNOWN
    return EXIT_FAILED
