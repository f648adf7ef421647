"""The tests that `make test` leaves to `make testslow`: a few tests with much of the processor time.

They start many processes, browsers, Java and clusters under load, send random requests, or repeat a check of `make
test` with other seeds. Continuous integration and `make testall` run them, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


def _with(test: str, ids: Iterable[object]) -> list[str]:
    """Return the names of a test with some parameters."""
    return [f"{test}[{each}]" for each in ids]


_RECOVERY: Final = (
    "tests/broker/storage/commit_log/test_log_recovery.py::test_every_store_recovers_a_prefix_with_everything_synced"
)
_TYPED: Final = "tests/proto/batch/test_typed_verification.py"
_EVERY_TYPE: Final = ("field by field-every type-3", "together-every type-3")
_GROUPS: Final = "tests/simulation/groups/test_groups.py"
_SIMULATION: Final = "tests/simulation/test_simulation.py::test_every_invariant_holds"
_LOSING: Final = (
    *("retention", "deleted and lost", "ages", "indexed", "compaction", "compacted and deleted", "scrubbed"),
    "lost segments",
)
_NEXT_LOSING: Final = [f"{mixture}-next" for mixture in _LOSING]

SLOW: Final = (
    "tests/cli/up/test_local_engine.py",
    "tests/cli/up/test_local_stack.py",
    "tests/clients/testing/test_process.py",
    "tests/e2e/test_addresses.py",
    "tests/e2e/test_beyond_the_end.py",
    "tests/e2e/test_counted_commit.py",
    "tests/e2e/test_descriptors.py",
    "tests/e2e/test_engine_changes.py",
    "tests/e2e/test_http_page.py",
    "tests/e2e/test_late_interrupts.py",
    "tests/e2e/test_lost_records.py",
    "tests/e2e/test_many_partitions.py",
    "tests/e2e/test_monitoring_files.py",
    "tests/e2e/test_page.py",
    "tests/e2e/test_rocksdb.py",
    "tests/e2e/test_secure_page.py",
    "tests/e2e/test_security_page.py",
    "tests/e2e/test_standard_streams.py",
    "tests/e2e/test_telemetry.py",
    "tests/e2e/test_top_cluster.py",
    "tests/faults/",
    "tests/gateway/schema/",
    "tests/gateway/test_fuzz.py",
    "tests/gateway/ui/",
    "tests/gateway/workers/test_parent.py",
    "tests/javascript/test_client.py",
    "tests/javascript/test_page.py",
    "tests/loadtest/",
    "tests/plugin/",
    "tests/spark/",
    "tests/broker/storage/rocksdb/test_killed.py",
    *_with(_RECOVERY, range(3, 12)),
    *_with("tests/broker/storage/partition/test_matching.py::test_reads_return_all_matching_records", range(10, 40)),
    "tests/cli/sql/test_duckdb_engine.py::test_numbers_that_were_not_looked_at_are_exact_or_an_error",
    "tests/cli/sql/test_duckdb_engine.py::test_parts_are_the_text_of_their_json_with_all_digits",
    *_with("tests/gateway/subscriptions/test_feed_reader.py::test_nothing_is_lost_repeated_or_reordered", range(2, 6)),
    *_with(f"{_TYPED}::test_splices_with_matching_crcs", ["together"]),
    *_with(f"{_TYPED}::test_cuts_and_tails_with_matching_crcs", ["together"]),
    *_with(f"{_TYPED}::test_rows_of_another_schema_under_this_ones_digest", ["field by field"]),
    *_with(f"{_TYPED}::test_every_damaged_byte_of_a_body_with_matching_crcs", _EVERY_TYPE),
    *_with("tests/simulation/files/test_files.py::test_crashes_and_damage_cost_only_what_they_may", [20]),
    *_with(f"{_GROUPS}::test_partitions_and_commits_of_members_are_exclusive", ["next"]),
    *_with(f"{_GROUPS}::test_doubtful_writes_let_no_two_members_read_a_partition", ["next"]),
    *_with(
        "tests/simulation/test_explore.py::test_no_state_within_tiny_bounds_breaks_anything", ["bounds2-True-10000"]
    ),
    *_with("tests/simulation/test_explore.py::test_random_walks_from_a_loss_break_nothing", ["a lost directory"]),
    *_with(f"{_SIMULATION}", [20]),
    *_with(f"{_SIMULATION}_after_recoveries_without_a_quorum", [5]),
    *_with(f"{_SIMULATION}_with_deduplication", [10, 20, 30]),
    *_with(f"{_SIMULATION}_with_record_loss_and_searches", _NEXT_LOSING),
    *_with(f"{_SIMULATION}_with_request_keys", [10, 20]),
    *_with(f"{_SIMULATION}_with_shared_files", ["8-19"]),
    *_with(f"{_SIMULATION}_with_shared_producer_ids", ["8-23"]),
    *_with("tests/simulation/whole/test_whole.py::test_every_invariant_holds", [2, 4]),
    *_with("tests/simulation/whole/test_whole.py::test_the_events_that_the_worlds_are_for_happen", ["churning"]),
)
"""Folders, files, tests (`FILE::NAME`) and tests with parameters (`FILE::NAME[ID]`), from the top of the repository."""


PARTS: Final = frozenset(each for each in SLOW if "::" in each)
WHOLE: Final = tuple(each for each in SLOW if each not in PARTS)

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
    has_slow = is_slow(path) or any(each.startswith(path) for each in SLOW)
    return expression == SLOW_ONLY and not has_slow


def is_slow(name: str) -> bool:
    """Return whether all tests with a name, or below a path, are among `SLOW`.

    Args:
        name: of a test, a file or a folder, from the top of the repository.
    """
    return name.startswith(WHOLE) or name in PARTS or name.partition("[")[0] in PARTS
