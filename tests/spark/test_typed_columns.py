from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql.types import BooleanType, ByteType, IntegerType, LongType, StringType, StructField, StructType
from tests.spark.typed_frames import columns_of, options, schema_of, topic_of

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.filters import narrowed
from pyspark_tidelog.typed_columns import comparable_columns, default_columns, typed_columns, with_stored_key
from tidelog_proto.schema.topic_schema import Schema

FLIGHTS = schema_of(
    "at timestamp[us,UTC]",
    "carrier string required",
    "gate string",
    "delay float64",
    time="at",
    key="carrier",
    tag="gate",
)
PLAIN = schema_of("offset int64", "partition int32", "key binary")


def names(schema: Schema, **given: str) -> list[str]:
    return default_columns(options(**given), topic_of(schema)).fieldNames()


def test_the_options_choose_columns() -> None:
    fields = ["at", "carrier", "gate", "delay"]
    assert names(FLIGHTS) == fields
    assert names(FLIGHTS, columns="delay,_offset , at") == ["delay", "_offset", "at"]
    assert names(FLIGHTS, includeRecordColumns="true") == [*fields, "_partition", "_offset", "_timestamp", "_headers"]
    assert names(FLIGHTS, includeHeaders="true", includeTags="true") == [*fields, "_headers"]
    assert names(FLIGHTS, includeTombstones="true", columns="delay") == ["delay", "_deleted"]
    assert names(PLAIN, includeTags="true", includeTombstones="true") == [
        "offset",
        "partition",
        "key",
        "_tag",
        "_deleted",
    ]
    assert names(PLAIN, includeRecordColumns="true")[3:] == [
        *("_partition", "_offset", "_timestamp", "_key", "_headers", "_tag"),
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"columns": "Carrier"}, "no column 'Carrier' in its schema 1. Did you mean 'carrier'"),
        ({"columns": "offset"}, "no column 'offset' in its schema 1. Did you mean '_offset'"),
        ({"columns": "_tag"}, "no column '_tag'"),
        ({"columns": "_deleted", "includeTombstones": "true"}, "is added by the option 'includeTombstones'"),
        ({"columns": "_deleted"}, "is added by the option 'includeTombstones'"),
        ({"columns": "delay", "includeRecordColumns": "true"}, "mutually exclusive"),
    ],
)
def test_columns_that_do_not_exist_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        names(FLIGHTS, **given)


def test_required_fields_are_not_null_unless_there_are_tombstones() -> None:
    shown = default_columns(options(), topic_of(FLIGHTS))
    assert [field.nullable for field in shown] == [False, False, True, True]
    with_tombstones = default_columns(options(includeTombstones="true"), topic_of(FLIGHTS)).fields
    assert [field.nullable for field in with_tombstones] == [True, True, True, True, False]
    described = FLIGHTS.fields[1]
    commented = Schema(
        1, FLIGHTS.next_field_id, tuple(_described(field, field is described) for field in FLIGHTS.fields)
    )
    assert default_columns(options(), topic_of(commented))["carrier"].metadata == {"comment": "of the flight"}


def _described(field: Any, described: bool) -> Any:
    return replace(field, doc="of the flight") if described else field


def declared(*fields: StructField, **given: str) -> list[str]:
    return typed_columns(options(**given), topic_of(FLIGHTS), StructType(list(fields))).arrow.names


def test_a_schema_of_the_user_is_a_choice_of_columns() -> None:
    delay = StructField("carrier", StringType())
    assert declared(StructField("_offset", LongType()), delay) == ["_offset", "carrier"]
    assert declared(StructField("_deleted", BooleanType()), delay, includeTombstones="true") == ["_deleted", "carrier"]
    with pytest.raises(OptionError, match="lacks the column '_deleted'"):
        declared(delay, includeTombstones="true")
    with pytest.raises(OptionError, match="'carrier' cannot be NOT NULL"):
        declared(
            StructField("carrier", StringType(), False),
            StructField("_deleted", BooleanType()),
            includeTombstones="true",
        )
    with pytest.raises(OptionError, match="duplicate column 'carrier'"):
        declared(delay, delay)
    with pytest.raises(OptionError, match="'_offset' is bigint, not int"):
        declared(StructField("_offset", IntegerType()))
    with pytest.raises(OptionError, match="Did you mean 'delay'"):
        declared(StructField("DELAY", ByteType()))


def filters(*each: tuple[str, str, Any]) -> list[Any]:
    module = pytest.importorskip("pyspark.sql.datasource")
    if not hasattr(module, "EqualTo"):
        pytest.skip("Spark 4.0 has no filters")
    return [getattr(module, kind)((name,), value) for kind, name, value in each]


def test_filters_narrow_columns_of_records_and_fields_with_a_role() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    found = narrowed(
        filters(
            ("EqualTo", "carrier", "UA"),
            ("GreaterThanOrEqual", "at", at),
            ("EqualTo", "gate", "B7"),
            ("LessThan", "_offset", 9),
            ("EqualTo", "_partition", 2),
            ("EqualTo", "delay", 1.0),
        ),
        comparable_columns(topic_of(FLIGHTS)),
    )
    assert (found.key, found.tag, found.since_us) == (b"UA", "B7", int(at.timestamp()) * 1_000_000)
    assert (found.end, found.partitions) == (9, frozenset({2}))


def test_fields_named_like_columns_of_records_do_not_narrow() -> None:
    given = filters(
        ("EqualTo", "offset", 7), ("EqualTo", "partition", 7), ("EqualTo", "key", b"x"), ("EqualTo", "topic", "x")
    )
    assert narrowed(given, comparable_columns(topic_of(PLAIN))) == narrowed([])
    assert narrowed(given) != narrowed([])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", " 1 ", " 1 "),
        ("int16", "-7", -7),
        ("int64", str(2**63 - 1), 2**63 - 1),
        ("date32", "2026-01-31", date(2026, 1, 31)),
        ("timestamp[us]", "2026-01-31T08:00:00", datetime(2026, 1, 31, 8)),  # noqa: DTZ001 - without a zone
        ("timestamp[us, UTC]", "2026-01-31T08:00:00+02:00", datetime(2026, 1, 31, 6, tzinfo=UTC)),
    ],
)
def test_a_key_given_as_text_is_a_value_of_the_key_field(kind: str, text: str, value: Any) -> None:
    topic = topic_of(schema_of(f"k {kind}", "n int8", key="k"))
    stored = with_stored_key(options(key=text), topic).key
    equal = comparable_columns(topic)["k"].stored
    assert equal is not None
    assert stored == equal(value)
    assert with_stored_key(options(keyHex="0001"), topic).key == b"\0\1", "bytes are those that are stored"
    assert with_stored_key(options(), topic).key is None
    assert with_stored_key(options(key="x"), topic_of(PLAIN)).key == b"x", "no field is the key"


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("int8", "128", "'128'|128"),
        ("int8", "1.0", "'1.0' is not an integer"),
        ("int8", "\u0661", "is not an integer"),
        ("date32", "today", "is not the JSON form of date32"),
        ("timestamp[us, UTC]", "2026-01-31T08:00:00", "k"),
        ("binary", "x", "give its bytes in 'keyHex'"),
    ],
)
def test_text_that_is_not_a_value_of_the_key_field_is_refused(kind: str, text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        with_stored_key(options(key=text), topic_of(schema_of(f"k {kind}", "n int8", key="k")))


def test_a_filter_that_does_not_fit_the_key_does_not_narrow() -> None:
    columns = comparable_columns(topic_of(schema_of("k int8", "n int8", key="k")))
    assert narrowed(filters(("EqualTo", "k", 1000)), columns).key is None
    assert narrowed(filters(("EqualNullSafe", "k", None)), columns).key is None
    assert narrowed(filters(("GreaterThan", "k", 1)), columns).key is None
    assert narrowed(filters(("EqualTo", "k", 1)), columns).key == bytes([128, 0, 0, 0, 0, 0, 0, 1])


def test_two_hundred_columns_are_columns() -> None:
    wide = schema_of(*(f"c{number} int32" for number in range(200)))
    assert len(columns_of(wide).arrow) == 200
    assert columns_of(wide, columns="c199,c0").arrow.names == ["c199", "c0"]
