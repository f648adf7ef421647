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


FAST_ONLY: Final = "not long and not slow"
SLOW_ONLY: Final = "slow and not long"
"""The expressions of markers with which `make test` and `make testslow` select tests."""


def is_left_out(path: str, expression: str) -> bool:
    """Return whether no test below a path is selected, so that pytest need not import the files.

    Args:
        path: a file, or a folder that ends with a slash, from the top of the repository.
        expression: of markers, as given to pytest; others than the two above leave out nothing.
    """
    if expression == FAST_ONLY:
        return is_slow(path)
    is_above = path.endswith("/") and any(each.startswith(path) for each in SLOW)
    return expression == SLOW_ONLY and not is_above and not is_slow(path)


def is_slow(path: str) -> bool:
    """Return whether a file of tests is among `SLOW`.

    Args:
        path: from the top of the repository.
    """
    return path.startswith(SLOW)
