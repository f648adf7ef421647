"""Crash handling of servers: a crash prints the Python stacks of all threads to standard error and leaves no core file.

A core file would contain keys, tokens, passwords and records. A library that aborts the process often prints nothing,
so without the stacks only the number of the signal would be known.
"""

from __future__ import annotations

import faulthandler
import resource
from typing import Final

CORE_LIMIT_BYTES: Final = 1
"""RLIMIT_CORE in bytes. Where `core_pattern` pipes cores to a program, Linux ignores every limit except 1
(`do_coredump` in the kernel); 1 byte is too small for any core file.
"""


STANDARD_ERROR: Final = 2


def prepare_for_crashes() -> None:
    """Print the stacks of all threads to standard error on SIGABRT, SIGBUS, SIGFPE, SIGILL and SIGSEGV; no core files.

    The limit of core files applies to the children of this process, too. Debuggers can still attach.
    """
    faulthandler.enable(STANDARD_ERROR)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    bound = CORE_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(CORE_LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (bound, bound))
