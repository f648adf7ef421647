from __future__ import annotations

import pytest

from pyspark_tidelog.access import Access
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.write_options import WriteOptions, parse_write_options

BARE = {"bootstrap": "a:1, b:2"}


def test_defaults() -> None:
    assert parse_write_options(BARE) == WriteOptions(
        Access(("a:1", "b:2")), None, "quorum", None, fail_on_changed_rows=True
    )
    given = {**BARE, "Topic": "t", "ACKS": "all", "compression": "ZSTD", "failOnChangedRows": "false", "queryName": "q"}
    assert parse_write_options(given) == WriteOptions(
        Access(("a:1", "b:2")), "t", "all", "zstd", fail_on_changed_rows=False
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka.bootstrap.servers": "a:1"}, "Did you mean 'bootstrap'"),
        ({"subscribe": "t"}, "Did you mean 'topic'"),
        ({"acks": "2"}, "'acks' must be one of quorum, 1, all"),
        ({"compression": "brotli"}, "'compression' must be one of none, gzip"),
        ({"failOnChangedRows": "perhaps"}, "'true' or 'false'"),
    ],
)
def test_invalid_option_is_reported(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_write_options({**BARE, **given})
