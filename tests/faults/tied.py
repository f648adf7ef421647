"""Runs a command that the kernel kills when its parent ends: `python tied.py PARENT COMMAND…`.

SIGKILL, unlike the SIGTERM of `tidelog_cli.up.supervised_child`, ends a process that a run has stopped with SIGSTOP,
too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def main(parent: int, command: list[str]) -> None:
    """Ask the kernel, then become the command.

    Raises:
        OSError: the kernel refuses, or there is no such command.
        SystemExit: the parent had ended before the kernel was asked.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGKILL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
