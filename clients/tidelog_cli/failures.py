"""How a command ends: the exit codes, and every exception as one clear line.

    0    done
    1    refused or failed; nothing more was done
    2    usage: the command line itself is wrong
    3    cannot connect
    4    outcome unknown: records may or may not have been stored
    130  interrupted with Ctrl-C

Rejected: one code for everything. A script has to tell "try later" (3) from "look first" (4).
"""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_CANNOT_CONNECT: Final = 3
EXIT_OUTCOME_UNKNOWN: Final = 4
EXIT_INTERRUPTED: Final = 130

EXIT_CODES_HELP: Final = (
    "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 cannot connect, "
    "4 outcome unknown (records may have been stored), 130 interrupted."
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
    """Return the one line a person sees for `error`."""
    text = " ".join(str(error).split())
    if isinstance(error, CommandFailed) or (text and isinstance(error, OSError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that `error` ends the command with."""
    return error.exit_code if isinstance(error, CommandFailed) else EXIT_FAILED
