"""The limit of open files and sockets of this process (docs/adr/0129)."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
from typing import Final

DESCRIPTORS_MAX: Final = 1 << 20
"""Maximum to which the soft limit is raised: some programs that inherit the limit loop over all descriptor numbers."""
REMEDY: Final = "raise the limit of open files (ulimit -n; LimitNOFILE= of systemd; --ulimit nofile= of a container)"


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, at most to DESCRIPTORS_MAX; return `descriptor_limit`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return descriptor_limit()


def connections_that_fit(wanted: int, fitting: int, log: logging.Logger) -> int:
    """Return `wanted`, the setting `connections_max`; if only fewer fit, log a warning and return `fitting`."""
    if fitting < wanted:
        log.warning(
            "the limit of open files is %d: at most %d connections are accepted instead of connections_max = %d; %s",
            descriptor_limit(),
            fitting,
            wanted,
            REMEDY,
        )
    return min(wanted, fitting)


def descriptor_limit() -> int:
    """Return how many descriptors this process may open; DESCRIPTORS_MAX if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether an error means that this process or the machine is out of file descriptors."""
    return error.errno in {errno.EMFILE, errno.ENFILE}
