"""The table at the end of a run: the faults, the clients' observations, and the violations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.faults.check import Verdict
from tests.faults.history import History

_WIDTH: Final = 76


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a run.

    Attributes:
        seed: of its plan.
        seconds: how long it took, healing and judging included.
        nodes: how many.
        partitions: how many, of all topics.
        records: committed, all partitions together.
        done: fault -> how often it was done.
        longest_s: fault -> the longest time in which some partition took nothing because of it.
        skipped: why faults of networks and disks were left out, empty when they were not.
    """

    seed: int
    seconds: float
    nodes: int
    partitions: int
    records: int
    done: Mapping[str, int]
    longest_s: Mapping[str, float]
    skipped: str


def table(summary: Summary, history: History, verdict: Verdict) -> str:
    """Return the table as text, with examples of violations."""
    named, routed = history.sent.values(), history.anywhere.values()
    refused = sum(len(each.refused) for each in named) + sum(len(each.refused) for each in routed)
    unknown = sum(len(each.unknown) for each in named) + sum(len(each.unknown) for each in routed)
    lines = [
        f"seed {summary.seed}: {summary.nodes} nodes, {summary.partitions} partitions, {summary.seconds:.0f} s",
        "",
        *_rows("fault", "times", _counts(summary.done)),
        _row("all faults", f"{sum(summary.done.values()):,}"),
        "",
        *_rows("longest pause of a partition, fault to going on", "s", {n: f"{s:.1f}" for n, s in _sorted(summary)}),
        "",
        *_rows(
            "clients",
            "records",
            {
                "acknowledged": f"{history.acked:,}",
                "refused for certain": f"{refused:,}",
                "outcome unknown": f"{unknown:,}",
                "committed in the end": f"{summary.records:,}",
                "delivered, all readers together": f"{history.delivered:,}",
                **{
                    f"answers about an {what}" if what == "end" else f"answers about a {what}": f"{count:,}"
                    for what, count in sorted(history.asked.items())
                },
            },
        ),
        "",
        *_rows(
            "errors that clients met", "times", {name: f"{count:,}" for name, count in sorted(history.errors.items())}
        ),
        "",
        *_rows("found", "times", {fault.value: f"{count:,}" for fault, count in verdict.counts.items()}),
    ]
    if summary.skipped:
        lines += ["", f"SKIPPED: faults of networks and disks: {summary.skipped}"]
    for fault, examples in verdict.examples.items():
        lines += ["", fault.value, *(f"  {example}" for example in examples)]
    lines += ["", f"{verdict.total:,} FAULTS FOUND" if verdict.total else "0 faults found"]
    return "\n".join(lines)


def _sorted(summary: Summary) -> list[tuple[str, float]]:
    return sorted(summary.longest_s.items(), key=lambda item: -item[1])


def _counts(counts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{count:,}" for name, count in sorted(counts.items())}


def _rows(title: str, unit: str, rows: Mapping[str, str]) -> list[str]:
    return [_row(title, unit), "-" * _WIDTH, *(_row(name, value) for name, value in rows.items())]


def _row(name: str, value: str) -> str:
    return f"{name:<{_WIDTH - 10}}{value:>10}"
