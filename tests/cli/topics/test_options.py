from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Cli


def test_retention_options(cli: Cli) -> None:
    options = ("--retention-time", "7d", "--cleanup", "compact,delete", "--index", "key,tag", "--hold")
    more = ("--tombstone-retention", "1d", "--compaction-lag", "1h", "--dirty-percent", "30")
    assert cli("topic", "create", "keeps", *options, *more).code == 0
    told = json.loads(cli("topic", "describe", "keeps", "--json").out)
    wanted = {"retention_ms": 604_800_000, "cleanup": "compact,delete", "index_key": True, "index_tag": True}
    wanted |= {"hold": True, "tombstone_retention_ms": 86_400_000, "compaction_lag_ms": 3_600_000, "dirty_percent": 30}
    assert {name: told[name] for name in wanted} == wanted
    changes = ("--retention-time", "0", "--cleanup", "delete", "--index", "none", "--no-hold", "--compaction-lag", "0s")
    assert cli("topic", "alter", "keeps", *changes).code == 0
    told = json.loads(cli("topic", "describe", "keeps", "--json").out)
    wanted |= {"retention_ms": 0, "cleanup": "delete", "index_key": False, "index_tag": False, "hold": False}
    assert {name: told[name] for name in wanted} == wanted | {"compaction_lag_ms": 0}


def test_deduplication_options(cli: Cli) -> None:
    assert cli("topic", "create", "drops", "--deduplicate", "10m", "--deduplicate-records", "5000").code == 0
    told = json.loads(cli("topic", "describe", "drops", "--json").out)
    assert (told["deduplicate_s"], told["deduplicate_records"]) == (600, 5000)
    assert "deduplicate 10 min, 5,000 records" in cli("topic", "describe", "drops").out
    assert cli("topic", "alter", "drops", "--deduplicate", "0").code == 0
    told = json.loads(cli("topic", "describe", "drops", "--json").out)
    assert (told["deduplicate_s"], told["deduplicate_records"]) == (0, 5000)


@pytest.mark.parametrize(
    "options",
    [
        ("--deduplicate", "10ms"),
        ("--deduplicate-records", "-1"),
        ("--retention-time", "-1d"),
        ("--retention-time", "7 moons"),
        ("--cleanup", "burn"),
        ("--index", "value"),
        ("--index", "none,key"),
        ("--dirty-percent", "0"),
        ("--tombstone-retention", "0s"),
    ],
)
def test_invalid_retention_is_refused(cli: Cli, topic: str, options: tuple[str, ...]) -> None:
    assert cli("topic", "alter", topic, *options).code == 2
