"""Run a module as a child that does not outlive its parent.

    python -m tidelog_cli.up.supervised_child PARENT MODULE ARGUMENT…

A parent that is killed with SIGKILL cannot stop its children. So the kernel is asked to send the child a SIGTERM when
the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), which stops it gracefully. Rejected: a `preexec_fn` in the
parent, which runs Python between fork and exec while other threads' locks are held; and a pipe that the child watches,
which every command would have to support.
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
    """Ask the kernel for a SIGTERM when the parent with the process id `parent` ends.

    Raises:
        OSError: the kernel refuses.
        SystemExit: the parent had already ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def main(arguments: Sequence[str]) -> None:
    """Let this process end with its parent, and run the module."""
    parent, module, *rest = arguments
    end_with(int(parent))
    sys.argv[1:] = rest
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
