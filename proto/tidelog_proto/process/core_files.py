"""Disabling of core dumps in servers: they would contain keys, tokens, passwords and records."""

from __future__ import annotations

import resource
from typing import Final

NOT_WORTH_IT: Final = 1
"""RLIMIT_CORE in bytes. Where `core_pattern` pipes cores to a program, Linux ignores every limit except 1
(`do_coredump` in the kernel); 1 byte is too small for any core file.
"""


def leave_no_core_files() -> None:
    """Disable core files of this process and its children. Debuggers can still attach."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    bound = NOT_WORTH_IT if hard == resource.RLIM_INFINITY else min(NOT_WORTH_IT, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (bound, bound))
