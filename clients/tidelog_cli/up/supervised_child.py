"""Run a module as a child that does not outlive its parent.

    python -m tidelog_cli.up.supervised_child PARENT MODULE ARGUMENT…

A parent that is killed with SIGKILL stops nobody. So the kernel is asked to send the child a SIGTERM when the
thread that started it ends (prctl(2), PR_SET_PDEATHSIG), which the child takes as an ordinary, graceful stop.
Rejected: a `preexec_fn` in the parent, which runs Python between fork and exec, with the locks of other threads held
by nobody; and a pipe that the child watches, which every command would have to know of.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs `python -m module *arguments` as a child of this process."""
    return [sys.executable, "-m", "tidelog_cli.up.supervised_child", str(os.getpid()), module, *arguments]


def end_with(parent: int) -> None:
    """Ask for SIGTERM at the end of the parent with the process id `parent`.

    Raises:
        OSError: the kernel refuses.
        SystemExit: the parent had ended before the kernel was asked.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def main(arguments: Sequence[str]) -> None:
    """Tie this process to its parent, then be the module."""
    parent, module, *rest = arguments
    end_with(int(parent))
    sys.argv[1:] = rest
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
