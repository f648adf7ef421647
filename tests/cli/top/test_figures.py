from __future__ import annotations

import json

from tests.cli.top.samples import sample

from tidelog_cli.top.figures import figures_of


def test_rates_are_what_was_committed_between_two_samples() -> None:
    figures = figures_of(sample(14.0, 300, lag=90), sample(10.0, 100, lag=50))
    first, away = figures.partitions
    assert (first.records, first.records_per_s, first.slowest_lag, first.size_bytes) == (290, 50.0, 7, 4096)
    assert (away.records, away.records_per_s, away.slowest_lag, away.size_bytes) == (None, None, None, None)
    (topic,) = figures.topics
    assert (topic.records_per_s, topic.largest_lag, topic.trouble, topic.records) == (50.0, 90, "1 away", 290)
    (group,) = figures.groups
    assert (group.lag, group.lag_per_s) == (90, 10.0)
    one, two = figures.nodes
    assert (one.owns, one.records_per_s, one.connections) == (1, 50.0, 3)
    assert (two.owns, two.records_per_s, two.connections, two.state) == (1, None, None, "dead")
    assert figures.records_per_s == 50.0


def test_there_are_no_rates_of_one_sample_of_a_cut_log_or_of_another_topic() -> None:
    newest = sample(14.0, 300)
    for before in (None, sample(10.0, 400), sample(10.0, 100, topic_id=b"9" * 16), sample(14.0, 100)):
        assert figures_of(newest, before).partitions[0].records_per_s is None


def test_internal_topics_are_shown_if_asked_for() -> None:
    assert [row.topic for row in figures_of(sample(1.0, 20), internal=True).topics] == ["[red]orders", "__meta"]


def test_the_document_is_json() -> None:
    document = json.loads(json.dumps(figures_of(sample(14.0, 300), sample(10.0, 100)).document()))
    assert document["topics"][0]["records_per_s"] == 50.0
