"""The topics of a statement that is followed: which records the next answer is made of."""

from __future__ import annotations

from tests.cli.conftest import Cli

from tidelog_cli.sql.topics import Topics


def test_next_result_reads_new_records(cli: Cli, topic: str, node: str) -> None:
    def publish() -> None:
        assert cli("produce", topic, "--partition", 1, stdin=b"a\nb\n").code == 0

    def begins() -> dict[int, int]:
        (table,) = topics.provide([topic])
        return dict(table.extent.starts)

    topics = Topics(node, "earliest", {}, 10)
    publish()
    assert begins() == {0: 0, 1: 0}
    publish()
    topics.wait_for_more(only_new=True)
    assert begins() == {0: 0, 1: 2}, "new records alone"
    publish()
    topics.wait_for_more(only_new=True)
    assert begins() == {0: 0, 1: 4}
    publish()
    topics.wait_for_more()
    assert begins() == {0: 0, 1: 0}, "all of them, unless told"
    publish()
    topics.wait_for_more(only_new=True)
    assert cli("topic", "delete", topic, "--yes").code == 0
    assert cli("topic", "create", topic, "--partitions", 2).code == 0
    publish()
    assert begins() == {0: 0, 1: 0}, "it is another topic"


def test_topic_that_was_empty_is_looked_at_once_it_has_records(cli: Cli, topic: str, node: str) -> None:
    topics = Topics(node, "earliest", {}, 10)
    (empty,) = topics.provide([topic])
    assert empty.shape is not None
    assert not empty.shape.fields
    assert cli("produce", topic, stdin=b'{"a":1}\n').code == 0
    (table,) = topics.provide([topic])
    assert table.shape is not None
    assert list(table.shape.fields) == ["a"]
