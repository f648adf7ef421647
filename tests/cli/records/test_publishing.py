from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Cli

from tidelog.produce.receipts import ReceiptRange
from tidelog_cli.records.publishing import Published


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_changes_nothing_for_the_reader(cli: Cli, topic: str, codec: str) -> None:
    content = b"".join(b'{"n":%d}\n' % n for n in range(1000))
    assert cli("produce", topic, "-", "--partition", 0, "--compression", codec, stdin=content).code == 0
    assert cli("consume", topic).out.encode() == content


def test_empty_input_succeeds(cli: Cli, topic: str) -> None:
    assert cli("produce", topic).out == f"published 0 records to {topic}\n"


def test_acknowledged_records_are_reported_by_partition(capsys: pytest.CaptureFixture[str]) -> None:
    published = Published(elapsed_s=1.5)
    published.add([ReceiptRange(1, 7, 3), ReceiptRange(0, 0, 2)], 100)
    published.add([ReceiptRange(1, 10, 1)], 10)
    published.tell("t", "published {} to {}", as_json=False)
    assert capsys.readouterr().out == "published 6 records to t\n"
    published.tell("t", "", as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "topic": "t",
        "records": 6,
        "elapsed_s": 1.5,
        "partitions": [
            {"partition": 0, "records": 2, "first_offset": 0, "last_offset": 1},
            {"partition": 1, "records": 4, "first_offset": 7, "last_offset": 10},
        ],
    }
