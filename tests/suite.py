"""Run the tests in several processes, and the few that failed once more, one after the other.

    python -m tests.suite [arguments of pytest]

Many tests run clusters of processes, whose timeouts a busy machine can exceed. A test that fails beside others and
passes alone is listed as unstable, and the run succeeds: correct the test or the product.
A test that fails twice fails the run, as do more than 5 failures and errors of another kind (collection, interruption).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import run
from typing import Final

import pytest

REPEATED_MAX: Final = 5
"""Maximum number of failed tests that run again: more failures have a common cause."""

CACHE: Final = Path(".pytest_cache/suite")
"""Directory in which pytest records the failed tests of a run, apart from those of other runs of pytest."""

FAILED: Final = int(pytest.ExitCode.TESTS_FAILED)


def run_suite(arguments: Sequence[str], *, run_pytest: Callable[[Sequence[str]], int], cache: Path = CACHE) -> int:
    """Run the tests, repeat the failed ones, and return the exit code of the run.

    Args:
        arguments: those of pytest.
        run_pytest: runs it with arguments and returns its exit code.
        cache: pytest's cache directory of this run; it is emptied first.
    """
    shutil.rmtree(cache, ignore_errors=True)
    recorded = ["-o", f"cache_dir={cache}"]
    code = run_pytest([*arguments, *recorded])
    failed = failed_in(cache)
    if code != FAILED or not 0 < len(failed) <= REPEATED_MAX:
        return code
    print(f"\n{len(failed)} failed; running them again, alone", flush=True)
    if again := run_pytest([*failed, *recorded, "-n", "0"]):
        return again
    print("\nUNSTABLE: these failed beside other tests and passed alone; find out why:")
    for name in failed:
        print(f"  {name}")
    return 0


def failed_in(cache: Path) -> list[str]:
    """Return the ids of the tests that failed in the last run with this cache directory."""
    try:
        return list(json.loads((cache / "v/cache/lastfailed").read_bytes()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(
        run_suite(
            sys.argv[1:], run_pytest=lambda given: run([sys.executable, "-m", "pytest", *given], check=False).returncode
        )
    )
