from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_tidelog import offsets_behind_latest

LATEST = {"a": {"0": 100, "1": 40, "id": "9f"}, "b": {"0": 7}}
END = {"a": {"0": 60, "1": 40, "id": "9f"}, "b": {"0": 5}}
METRICS = {
    "avgOffsetsBehindLatest": "14.0",
    "maxOffsetsBehindLatest": "40",
    "minOffsetsBehindLatest": "0",
    "sumOffsetsBehindLatest": "42",
}


class Progress:
    """As Spark has it in Python: an object with its JSON."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.json = json.dumps(document)


@pytest.mark.parametrize("as_text", [True, False], ids=["as text", "as objects"])
@pytest.mark.parametrize("wrap", [dict, json.dumps, Progress])
def test_figures_are_those_of_sparks_kafka_source(wrap: Any, as_text: bool) -> None:
    latest, end = (json.dumps(LATEST), json.dumps(END)) if as_text else (LATEST, END)
    assert offsets_behind_latest(wrap({"sources": [{"latestOffset": latest, "endOffset": end}]})) == [METRICS]


@pytest.mark.parametrize(
    "source",
    [
        {"latestOffset": None, "endOffset": END},
        {"latestOffset": LATEST, "endOffset": None},
        {"endOffset": END},
        {"latestOffset": "7", "endOffset": "5"},
        {"latestOffset": {"logOffset": 3}, "endOffset": {"logOffset": 1}},
        {"latestOffset": "no json", "endOffset": "none"},
        {"latestOffset": {}, "endOffset": {}},
    ],
)
def test_a_source_that_does_not_say_where_it_ends_has_no_figures(source: dict[str, Any]) -> None:
    assert offsets_behind_latest({"sources": [source, {"latestOffset": LATEST, "endOffset": END}]}) == [{}, METRICS]


def test_a_partition_that_the_query_has_not_entered_is_behind_by_all_of_it() -> None:
    (told,) = offsets_behind_latest(
        {"sources": [{"latestOffset": {"a": {"0": 5, "1": 9}}, "endOffset": {"a": {"0": 5}}}]}
    )
    assert (told["maxOffsetsBehindLatest"], told["sumOffsetsBehindLatest"]) == ("9", "9")


def test_a_query_is_never_ahead() -> None:
    (told,) = offsets_behind_latest({"sources": [{"latestOffset": {"a": {"0": 5}}, "endOffset": {"a": {"0": 8}}}]})
    assert set(told.values()) == {"0", "0.0"}
