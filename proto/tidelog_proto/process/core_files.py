"""Disabling of core dumps in servers: they would contain keys, tokens, passwords and records."""

from __future__ import annotations

import resource
from typing import Final

CORE_LIMIT_BYTES: Final = 1
"""RLIMIT_CORE in bytes. Where `core_pattern` pipes cores to a program, Linux ignores every limit except 1
(`do_coredump` in the kernel); 1 byte is too small for any core file.
"""


def disable_core_files() -> None:
    """Disable core files of this process and its children. Debuggers can still attach."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    bound = CORE_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(CORE_LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (bound, bound))
