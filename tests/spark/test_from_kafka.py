"""Errors for options of Spark's Kafka source, and their table in the documentation."""

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
        ("kafka.client.rack", " Use 'readFrom=nearest' with 'zone'.", " It is only for reading: 'readFrom=nearest'"),
        ("client.rack", " Use 'readFrom=nearest' with 'zone'.", " It is only for reading: 'readFrom=nearest'"),
        ("kafka.sasl.mechanism", " Use 'apiKeyFile', 'tokenFile', or 'user' with 'passwordFile'.", " Use 'apiKeyFile'"),
        ("kafka.sasl.jaas.config", " Use 'apiKeyFile', 'tokenFile', or", " Use 'apiKeyFile'"),
        (
            "kafka.group.id",
            " It has no equivalent here: a query's positions are only in its checkpoint",
            " It has no equivalent",
        ),
        (
            "groupIdPrefix",
            " It has no equivalent here: a query's positions are only in its checkpoint",
            " It has no equivalent",
        ),
        (
            "kafka.isolation.level",
            " It has no equivalent here: only committed records are read.",
            " It has no equivalent",
        ),
        (
            "kafka.ssl.truststore.password",
            " It has no equivalent here: keys and certificates are",
            " It has no equivalent",
        ),
        ("keyPassword", " It has no equivalent here: keys and certificates are", " It has no equivalent"),
        ("kafka.ssl.truststore.location", " Use 'caFile', in PEM.", " Use 'caFile'"),
        ("kafka.ssl.keystore.location", " Use 'certFile' and 'keyFile', in PEM.", " Use 'certFile'"),
        ("kafka.ssl.protocol", " Use 'tls', 'caFile'", " Use 'tls', 'caFile'"),
        ("kafka.security.protocol", " Use 'tls'; and credentials", " Use 'tls'; and credentials"),
        ("KAFKA.Bootstrap.Servers", " Did you mean 'bootstrap'?", " Did you mean 'bootstrap'?"),
        ("bootstrap.servers", " Did you mean 'bootstrap'?", " Did you mean 'bootstrap'?"),
        ("kafka.fetch.max.bytes", " It has no equivalent here: replies are bounded", " It has no equivalent"),
        ("fetchOffset.numRetries", " It has no equivalent here: replies are bounded", " It has no equivalent"),
        ("kafka.auto.offset.reset", " Did you mean 'startingOffsets'?", " It is only for reading: 'startingOffsets'."),
        ("kafka.acks", " It is only for writing: 'acks'.", " Did you mean 'acks'?"),
        ("kafka.compression.type", " It is only for writing: 'compression'.", " Did you mean 'compression'?"),
        ("kafka.enable.idempotence", " It has no equivalent here: each row is stored once.", " It has no equivalent"),
        ("kafka.value.deserializer", " It has no equivalent here: keys and values are bytes", " It has no equivalent"),
        ("kafka.some.day", " It has no equivalent here: no Kafka client is used", " It has no equivalent"),
    ],
)
def test_kafka_options_have_a_hint(name: str, reading: str, writing: str) -> None:
    for parse, given, said in (
        (parse_options, {"subscribe": "t"}, reading),
        (parse_write_options, {"topic": "t"}, writing),
    ):
        with pytest.raises(OptionError) as caught:
            parse({"bootstrap": "a:1", **given, name: "secret"})
        assert str(caught.value).startswith(f"unknown option {name!r}.{said}")
        assert "secret" not in str(caught.value)


def test_options_of_the_other_side_have_a_hint() -> None:
    assert hint_of("startingOffsets", "writing") == " It is only for reading."
    assert hint_of("maxOffsetsPerTrigger", "writing") == " It is only for reading."
    assert hint_of("includeHeaders", "writing").startswith(" It has no equivalent here: a column 'headers'")
    assert [hint_of(name, "reading") for name in ("zzz", "kafka", "startingOffset", "keyFil")] == [""] * 4


def test_equivalent_options_exist() -> None:
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
    assert "`" not in rows[-1], "the last row has no option"
