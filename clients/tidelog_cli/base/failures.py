"""How a command ends: the exit codes, and every exception as one clear line.

    0    done
    1    refused or failed; nothing more was done
    2    usage: the command line itself is wrong
    3    cannot connect, or the connection broke
    4    outcome unknown: what was asked for may or may not have happened
    74   `node`: its disk failed
    78   `node`: it must not go on under its id (removed, or used by another process)
    130  interrupted with Ctrl-C

Rejected: one code for everything. A script has to tell "try later" (3) from "look first" (4).
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
    "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 cannot connect, "
    "4 outcome unknown (it may have happened), 130 interrupted; of a node also 74 its disk failed, "
    "78 its id is another's or was removed."
)


class CommandFailed(Exception):  # noqa: N818 - it ends a command; "Error" would say nothing more
    """A command's own refusal.

    Attributes:
        exit_code: one of the codes above.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def describe(error: BaseException) -> str:
    """Return the one line a person sees for `error`; our own errors speak for themselves."""
    text = " ".join(str(error).split())
    ours = type(error).__module__.startswith("tidelog")
    if text and (ours or isinstance(error, OSError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that `error` ends the command with."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    if isinstance(error, (NodeUnreachableError, ConnectionLostError, BadReplyError)):
        return EXIT_CANNOT_CONNECT
    if isinstance(error, TidelogError) and not error.definite:
        return EXIT_OUTCOME_UNKNOWN
    return EXIT_FAILED
