from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_tidelog.access import Access
from pyspark_tidelog.columns import record_columns
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.options import (
    COLUMN_NAMES,
    MAX_RECORDS_PER_BATCH_DEFAULT,
    OPTION_NAMES,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    parse_options,
)

BARE = {"bootstrap": "127.0.0.1:7400", "subscribe": "flights"}


def parsed(**more: str) -> ReadOptions:
    return parse_options({**BARE, **more})


def refused(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        parse_options(options)
    return str(caught.value)


def test_the_least_that_can_be_said_reads_everything() -> None:
    assert parse_options(BARE) == ReadOptions(
        access=Access(("127.0.0.1:7400",)),
        selection=Subscribe(("flights",)),
        starting=Edge.EARLIEST,
        ending=Edge.LATEST,
        start_late_timestamps_at_latest=False,
        min_partitions=None,
        fail_on_data_loss=True,
        columns=None,
        max_records_per_batch=MAX_RECORDS_PER_BATCH_DEFAULT,
    )


def test_names_come_in_any_case_as_spark_lowers_them() -> None:
    options = {"BOOTSTRAP": " a:1 , b:2 ", "Subscribe": "x, y,x", "failondataloss": "FALSE", "minpartitions": "7"}
    result = parse_options(options)
    assert result.access.bootstrap == ("a:1", "b:2")
    assert result.selection == Subscribe(("x", "y"))
    assert not result.fail_on_data_loss
    assert result.min_partitions == 7


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("startingOffset", "startingOffsets"),
        ("kafka.bootstrap.servers", "bootstrap"),
        ("path", "subscribe"),
        ("topic", "subscribe"),
        ("minPartition", "minPartitions"),
        ("includeheader", "includeHeaders"),
    ],
)
def test_an_unknown_option_is_an_error_with_a_suggestion(name: str, suggestion: str) -> None:
    message = refused({**BARE, name: "1"})
    assert f"unknown option {name!r}" in message
    assert f"Did you mean {suggestion!r}?" in message


def test_a_table_of_spark_is_refused() -> None:
    table = {"provider": "tidelog", "owner": "me", **BARE, **{f"option.{name}": value for name, value in BARE.items()}}
    assert "CREATE TEMPORARY VIEW" in refused(table)


def test_key_and_tag_keep_their_whitespace() -> None:
    assert (parsed().key, parsed().tag) == (None, None)
    assert (parsed(key=" ü ").key, parsed(tag=" red\n").tag) == (" ü ".encode(), " red\n")
    assert (parsed(key="").key, parsed(keyHex="").key, parsed(keyHex=" 00fF ").key) == (b"", b"", b"\x00\xff")
    assert parse_options({**BARE, "key": "k"}, streaming=True).key == b"k"
    assert "'key' and 'keyHex'" in refused({**BARE, "key": "k", "keyHex": "00"})


def test_option_without_a_similar_name_lists_all() -> None:
    message = refused({**BARE, "zzz": "1"})
    assert "Did you mean" not in message
    assert all(name in message for name in OPTION_NAMES)


def test_the_topics_are_named_in_exactly_one_way() -> None:
    assert "got none" in refused({"bootstrap": "a:1"})
    assert "got 'subscribe', 'assign'" in refused({**BARE, "assign": '{"t":[0]}'})
    assert "empty" in refused({"bootstrap": "a:1", "subscribe": " , "})
    assert "'bootstrap' is missing" in refused({"subscribe": "t"})
    assert "TEMPORARY VIEW" not in refused({"subscribe": "t"})
    assert "use CREATE TEMPORARY VIEW" in refused({})


def test_patterns_and_assignments() -> None:
    assert parse_options({"bootstrap": "a:1", "subscribePattern": "fl.*"}).selection == SubscribePattern("fl.*")
    assignment = parse_options({"bootstrap": "a:1", "assign": '{"a":[2,0,2],"b":[1]}'}).selection
    assert assignment == Assign({"a": (0, 2), "b": (1,)})
    assert "not a regular expression" in refused({"bootstrap": "a:1", "subscribePattern": "("})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"t":[]}', '{"t":0}', '{"t":[-1]}', '{"t":["0"]}', '{"t":[true]}', "{", "[" * 100_000]
)
def test_a_malformed_assignment_is_refused(text: str) -> None:
    assert "'assign'" in refused({"bootstrap": "a:1", "assign": text})


def test_times_are_milliseconds_or_iso_8601() -> None:
    exact = parsed(startingTimestamp="1970-01-20T01:00:00.000001+01:00", endingTimestamp="1700000000000")
    assert exact.starting == AtTimestamp(19 * 86_400_000_000 + 1)
    assert exact.ending == AtTimestamp(1_700_000_000_000_000)
    by_partition = parsed(startingOffsetsByTimestamp='{"t":{"0":5,"1":"1970-01-20T00:00:00Z"}}')
    assert by_partition.starting == AtTimestamps({"t": {0: 5_000, 1: 19 * 86_400_000_000}})


def test_offsets() -> None:
    result = parsed(startingOffsets='{"flights":{"0":5,"1":-2}}', endingOffsets='{"flights":{"0":-1,"1":9}}')
    assert result.starting == AtOffsets({"flights": {0: 5, 1: -2}})
    assert result.ending == AtOffsets({"flights": {0: -1, 1: 9}})
    assert parsed(startingOffsets="Earliest", endingOffsets="LATEST") == parsed()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("startingOffsets", "latest", "nothing would be read"),
        ("endingOffsets", "earliest", "nothing would be read"),
        ("startingOffsets", '{"t":{"0":-1}}', "-1 (latest)"),
        ("endingOffsets", '{"t":{"0":-2}}', "-2 (earliest)"),
        ("startingOffsets", '{"t":{"0":-3}}', "must be an integer from -2"),
        ("startingOffsets", '{"t":{"0":1.5}}', "must be an integer from -2"),
        ("startingOffsets", '{"t":{"-1":0}}', "must be integers of at most"),
        ("startingOffsets", '{"t":[0]}', "must be an object of partitions"),
        ("startingOffsets", "newest", "is not JSON"),
        ("startingTimestamp", "-1", "milliseconds"),
        ("startingTimestamp", "2013-01-01", "milliseconds"),
        ("endingTimestamp", "9" * 30, "milliseconds"),
        ("startingTimestamp", "1700000000", "2023-11-14T22:13:20Z in seconds, but milliseconds"),
        ("endingTimestamp", "1700000000000000", "in microseconds, but milliseconds since 1970 are expected"),
        ("startingOffsetsByTimestamp", '{"t":{"0":1700000000}}', "pass 1700000000000"),
        ("startingOffsetsByTimestamp", '{"t":{"0":"2023-11-14"}}', "must be milliseconds since 1970, or ISO 8601"),
        ("startingOffsetsByTimestamp", '{"t":{"0":-1}}', "must be milliseconds since 1970"),
        ("startingOffsetsByTimestampStrategy", "newest", "'error' or 'latest'"),
        ("minPartitions", "0", "from 1"),
        ("minPartitions", "many", "from 1"),
        ("maxRecordsPerBatch", "1000001", "to 1000000"),
        ("failOnDataLoss", "yes", "'true' or 'false'"),
        ("includeHeaders", "1", "'true' or 'false'"),
        ("columns", "", "one or more"),
        ("columns", "offset,offset", "different columns"),
        ("schemaNumber", "0", "must be an integer from 1 to 256"),
        ("includeTombstones", "yes", "must be 'true' or 'false'"),
        ("keyHex", "0", "pairs of hexadecimal digits"),
        ("keyHex", "zz", "pairs of hexadecimal digits"),
        ("keyHex", "00" * (1 << 19) + "00", "524289 bytes; at most 524288"),
        ("key", "ä" * (1 << 18) + "a", "524289 bytes; at most 524288"),
        ("key", "\ud800", "UTF-8"),
        ("tag", "t" * 4097, "4097 bytes; at most 4096"),
        ("tag", "\udfff", "UTF-8"),
    ],
)
def test_a_wrong_value_names_the_option_and_what_is_right(name: str, text: str, says: str) -> None:
    message = refused({**BARE, name: text})
    assert repr(name) in message
    assert says in message


def test_more_precise_option_wins() -> None:
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"flights":{"0":7}}'}
    assert parsed(**both).starting == AtTimestamps({"flights": {0: 7000}})
    assert parsed(**both, startingTimestamp="1700000000000").starting == AtTimestamp(1_700_000_000_000_000)


def test_where_tasks_read() -> None:
    assert not parsed().nearest
    near = parsed(readFrom="nearest", zone="east", maxRecordsPerPartition="7")
    assert (near.nearest, near.zone, near.max_records) == (True, "east", 7)
    assert "'readFrom' must be 'owner' or 'nearest'" in refused({**BARE, "readFrom": "follower"})
    assert "omit 'zone'" in refused({**BARE, "zone": "east"})


def test_columns() -> None:
    assert record_columns(parsed(includeHeaders="true", includeTags="true")) == COLUMN_NAMES
    assert record_columns(parsed()) == tuple(name for name in COLUMN_NAMES if name not in {"headers", "tag"})
    assert record_columns(parsed(columns="offset, headers")) == ("offset", "headers")
    for more, says in (
        ({"columns": "ofset"}, "Did you mean 'offset'"),
        ({"schemaNumber": "1"}, "'schemaNumber' is for typed topics"),
        ({"includeRecordColumns": "true"}, "'includeRecordColumns' is for typed topics"),
        ({"includeTombstones": "true"}, "'includeTombstones' is for typed topics"),
    ):
        with pytest.raises(OptionError, match=says):
            record_columns(parsed(**more))


def test_a_single_topic() -> None:
    assert parsed().single_topic == "flights"
    assert parsed(subscribe="a,b").single_topic is None
    assert parse_options({"bootstrap": "a:1", "assign": '{"t":[0,1]}'}).single_topic == "t"
    assert parse_options({"bootstrap": "a:1", "subscribePattern": "t"}).single_topic is None


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw makes the strategy, on a machine that is busy
@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # what a regular expression may mean some day
@given(
    st.dictionaries(
        st.sampled_from([*OPTION_NAMES, "other"]),
        st.text(max_size=20)
        | st.sampled_from(["true", "1", "earliest", "latest"])
        | st.recursive(
            st.none() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text("019t-", max_size=2), inner, max_size=3)
            ),
            max_leaves=8,
        ).map(json.dumps),
    )
)
def test_nothing_but_option_errors_comes_out(options: dict[str, Any]) -> None:
    try:
        result = parse_options(options)
    except OptionError:
        return
    assert result.access.bootstrap
