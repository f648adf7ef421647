"""No core files of servers: whoever finds one would read keys, tokens, passwords and records out of it."""

from __future__ import annotations

import resource
from typing import Final

NOT_WORTH_IT: Final = 1
"""Bytes: too few for any file. Where Linux hands cores to a program (`core_pattern` with a pipe) it does so whatever
the bound is, but for this one (`do_coredump` in the kernel).
"""


def leave_no_core_files() -> None:
    """Have this process and its children leave none, however they end. A debugger may be attached as before."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    bound = NOT_WORTH_IT if hard == resource.RLIM_INFINITY else min(NOT_WORTH_IT, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (bound, bound))
