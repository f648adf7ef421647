"""The tests that `make test` leaves to `make testslow`: a few tests with much of the processor time.

They start many processes, browsers, Java and clusters under load, or send random requests. Continuous integration and
`make testall` run them, too.
"""

from __future__ import annotations

from typing import Final

SLOW: Final = (
    "tests/e2e/test_many_partitions.py",
    "tests/e2e/test_page.py",
    "tests/e2e/test_secure_page.py",
    "tests/e2e/test_security_page.py",
    "tests/e2e/test_standard_streams.py",
    "tests/faults/",
    "tests/gateway/schema/",
    "tests/gateway/test_fuzz.py",
    "tests/gateway/ui/",
    "tests/gateway/workers/test_parent.py",
    "tests/loadtest/",
    "tests/spark/",
)
"""Folders and files, from the top of the repository."""


def is_slow(path: str) -> bool:
    """Return whether a file of tests is among `SLOW`.

    Args:
        path: from the top of the repository.
    """
    return path.startswith(SLOW)
