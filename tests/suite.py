"""Run the tests in several processes, and the few that failed once more, one after the other.

    python -m tests.suite [arguments of pytest]

Many tests run clusters of processes, whose timeouts a busy machine can exceed. A test that fails beside others and
passes alone is listed as unstable, and the run succeeds: correct the test or the product.
A test that fails twice fails the run, as do more than 5 failures and errors of another kind (collection, interruption).

The tests keep their files in memory where there is room: a node that starts syncs dozens of files, which takes most of
the time of a short test. With the variable TMPDIR they keep them there.

Python keeps compiled files during the tests, whatever PYTHONDONTWRITEBYTECODE says: the tests start hundreds of
processes, and each would compile the project again.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen, run
from typing import Final

import pytest

REPEATED_MAX: Final = 5
"""Maximum number of failed tests that run again: more failures have a common cause."""

CACHE: Final = Path(".pytest_cache/suite")
"""Directory in which pytest records the failed tests of a run, apart from those of other runs of pytest."""

MEMORY: Final = Path("/dev/shm")
"""A file system in memory, on Linux."""

MEMORY_BYTES_MIN: Final = 4 * 1024**3
"""Free space in memory below which the files are on disk."""

TESTS: Final = Path(__file__).parent

NOT_COMPILED_MAX: Final = 50
"""Maximum number of files that each process that shares the tests compiles by itself: 50 take it 2 s."""

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


def with_files_in_memory(environ: Mapping[str, str], memory: Path = MEMORY) -> dict[str, str]:
    """Return the variables with TMPDIR in memory, unless it is given, or the file system cannot be used.

    It needs room, and permission to execute the programs that some tests write. The directory must not be another
    user's. Pytest deletes the directories of earlier runs there.
    """
    place = memory / f"tidelog-{os.getuid()}"
    if "TMPDIR" in environ or not memory.is_dir():
        return dict(environ)
    if shutil.disk_usage(memory).free < MEMORY_BYTES_MIN or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return dict(environ)
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return {**environ, "TMPDIR": str(place)} if is_private else dict(environ)


def with_compiled_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the one that keeps Python from writing compiled files."""
    return {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def failed_in(cache: Path) -> list[str]:
    """Return the ids of the tests that failed in the last run with this cache directory."""
    try:
        return list(json.loads((cache / "v/cache/lastfailed").read_bytes()))
    except FileNotFoundError:
        return []


def compile_tests(environ: Mapping[str, str], tests: Path = TESTS) -> None:
    """Compile the tests and what they import, if many are new or have changed since they were compiled.

    The processes that share the tests collect all of them, so each would compile all files. Two processes compile half
    of the folders each. An error of collection is reported by the run.
    """
    if len(not_compiled(tests)) <= NOT_COMPILED_MAX:
        return
    folders = sorted(str(path) for path in tests.iterdir() if path.is_dir() and path.name != "__pycache__")
    collectors = [
        Popen(
            [sys.executable, "-m", "pytest", "--collect-only", "-qq", *folders[half::2]],
            env=environ,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        for half in range(2)
    ]
    for collector in collectors:
        collector.wait()


def not_compiled(tests: Path) -> set[Path]:
    """Return the files of tests, without their suffix, that pytest has not compiled since they changed."""
    sources = {path.with_suffix(""): path.stat().st_mtime for path in tests.rglob("test_*.py")}
    for path in tests.rglob("__pycache__/test_*pytest*.pyc"):
        source = path.parents[1] / path.name.partition(".")[0]
        if source in sources and path.stat().st_mtime >= sources[source]:
            del sources[source]
    return set(sources)


def main(arguments: Sequence[str]) -> int:
    """Run the tests with the arguments of pytest and return the exit code."""
    environ = with_compiled_files(with_files_in_memory(os.environ))
    compile_tests(environ)

    def run_pytest(given: Sequence[str]) -> int:
        return run([sys.executable, "-m", "pytest", *given], env=environ, check=False).returncode

    return run_suite(arguments, run_pytest=run_pytest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
