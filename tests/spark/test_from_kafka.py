"""What a job is told that brings options of Spark's Kafka source, and that the page shows the same."""

from __future__ import annotations

import re

import pytest
from tests.test_docs import ROOT

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.from_kafka import MOVED, THE_SAME, hint_of
from pyspark_tidelog.options import OPTION_NAMES, parse_options
from pyspark_tidelog.write_options import WRITE_OPTION_NAMES, parse_write_options

PAGE = ROOT / "docs" / "spark-options.md"


@pytest.mark.parametrize(
    ("name", "reading", "writing"),
    [
        ("kafka.client.rack", " Use 'readFrom=nearest' with 'zone'.", " It is for reading alone: 'readFrom=nearest'"),
        ("client.rack", " Use 'readFrom=nearest' with 'zone'.", " It is for reading alone: 'readFrom=nearest'"),
        ("kafka.sasl.mechanism", " Use 'apiKeyFile', 'tokenFile', or 'user' with 'passwordFile'.", " Use 'apiKeyFile'"),
        ("kafka.sasl.jaas.config", " Use 'apiKeyFile', 'tokenFile', or", " Use 'apiKeyFile'"),
        ("kafka.group.id", " There is no such option here: a query's positions are in its checkpoint", " There is no"),
        ("groupIdPrefix", " There is no such option here: a query's positions are in its checkpoint", " There is no"),
        ("kafka.isolation.level", " There is no such option here: only committed records are read.", " There is no"),
        ("kafka.ssl.truststore.password", " There is no such option here: keys and certificates are", " There is no"),
        ("keyPassword", " There is no such option here: keys and certificates are", " There is no"),
        ("kafka.ssl.truststore.location", " Use 'caFile', in PEM.", " Use 'caFile'"),
        ("kafka.ssl.keystore.location", " Use 'certFile' and 'keyFile', in PEM.", " Use 'certFile'"),
        ("kafka.ssl.protocol", " Use 'tls', 'caFile'", " Use 'tls', 'caFile'"),
        ("kafka.security.protocol", " Use 'tls'; and who asks", " Use 'tls'; and who asks"),
        ("KAFKA.Bootstrap.Servers", " Did you mean 'bootstrap'?", " Did you mean 'bootstrap'?"),
        ("bootstrap.servers", " Did you mean 'bootstrap'?", " Did you mean 'bootstrap'?"),
        ("kafka.fetch.max.bytes", " There is no such option here: answers are bounded", " There is no"),
        ("fetchOffset.numRetries", " There is no such option here: answers are bounded", " There is no"),
        ("kafka.auto.offset.reset", " Did you mean 'startingOffsets'?", " It is for reading alone: 'startingOffsets'."),
        ("kafka.acks", " It is for writing alone: 'acks'.", " Did you mean 'acks'?"),
        ("kafka.compression.type", " It is for writing alone: 'compression'.", " Did you mean 'compression'?"),
        ("kafka.enable.idempotence", " There is no such option here: each row is stored once.", " There is no"),
        ("kafka.value.deserializer", " There is no such option here: keys and values are bytes", " There is no"),
        ("kafka.some.day", " There is no such option here: no client of Kafka's is at work", " There is no"),
    ],
)
def test_kafkas_options_are_told_what_stands_for_them(name: str, reading: str, writing: str) -> None:
    for parse, given, said in (
        (parse_options, {"subscribe": "t"}, reading),
        (parse_write_options, {"topic": "t"}, writing),
    ):
        with pytest.raises(OptionError) as caught:
            parse({"bootstrap": "a:1", **given, name: "secret"})
        assert str(caught.value).startswith(f"unknown option {name!r}.{said}")
        assert "secret" not in str(caught.value)


def test_options_of_the_other_side_are_told_so() -> None:
    assert hint_of("startingOffsets", "writing") == " It is for reading alone."
    assert hint_of("maxOffsetsPerTrigger", "writing") == " It is for reading alone."
    assert hint_of("includeHeaders", "writing").startswith(" There is no such option here: a column 'headers'")
    assert [hint_of(name, "reading") for name in ("zzz", "kafka", "startingOffset", "keyFil")] == [""] * 4


def test_what_stands_for_them_is_there() -> None:
    names = {*OPTION_NAMES, *WRITE_OPTION_NAMES}
    for moved in MOVED:
        ours = {text.partition("=")[0] for text in re.findall(r"`([^`]+)`", moved.here)} - {"headers"}
        assert ours <= names, moved
        if moved.here == THE_SAME:
            assert {*moved.names} <= {*(WRITE_OPTION_NAMES if moved.side == "writing" else OPTION_NAMES)}, moved
        else:
            assert not {*moved.names} & {*(OPTION_NAMES if moved.side != "writing" else WRITE_OPTION_NAMES)}, moved


def test_the_page_has_the_same_table() -> None:
    _, _, part = PAGE.read_text().partition("| Kafka | Tidelog |\n| --- | --- |\n")
    rows = part.partition("\n\n")[0].splitlines()
    assert rows[:-1] == [moved.shown() for moved in MOVED]
    assert "`" not in rows[-1], "what it says is of no option"
