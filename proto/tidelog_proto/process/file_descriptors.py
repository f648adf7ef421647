"""How many files and sockets this process may have open: the limit is raised, and shared out (docs/adr/0129)."""

from __future__ import annotations

import contextlib
import errno
import resource
from typing import Final

DESCRIPTORS_MAX: Final = 1 << 20
"""The soft limit is raised no further: some programs that inherit it loop over all numbers."""
REMEDY: Final = "raise the limit of open files (ulimit -n; LimitNOFILE= of systemd; --ulimit nofile= of a container)"


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, as far as DESCRIPTORS_MAX; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many descriptors this process may have; DESCRIPTORS_MAX where it is not limited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def is_out_of_descriptors(error: OSError) -> bool:
    """Tell whether an error means that no more files can be open, in this process or on this machine."""
    return error.errno in {errno.EMFILE, errno.ENFILE}
