from __future__ import annotations

import json

from tests.cli.conftest import Cli


def test_a_quota_is_set_listed_and_removed(cli: Cli) -> None:
    told = cli(
        "quota", "set", "role:etl", "--produce-bytes", "10MiB", "--requests", "unlimited", "--topics", 0, "--groups", 3
    )
    assert told.code == 0, told.err
    (found,) = [quota for quota in json.loads(cli("quota", "list", "--json").out) if quota["subject"] == "role:etl"]
    assert (found["produce_bytes"], found["requests"], found["topics"], found["groups"]) == (
        10 << 20,
        "unlimited",
        0,
        3,
    )
    assert found["connections"] is None
    assert "10,485,760" in cli("quota", "list").out
    assert cli("quota", "set", "role:etl", "--in-flight", "1MiB").code == 0
    (found,) = [quota for quota in json.loads(cli("quota", "list", "--json").out) if quota["subject"] == "role:etl"]
    assert (found["produce_bytes"], found["in_flight_bytes"]) == (None, 1 << 20), "the whole quota is another one"
    assert cli("quota", "remove", "role:etl").code == 0
    assert "role:etl" not in cli("quota", "list").out


def test_usage_is_listed(cli: Cli) -> None:
    assert cli("quota", "set", "address:127.0.0.0/8", "--requests", 1000).code == 0
    try:
        (used,) = json.loads(cli("quota", "list", "--usage", "--json").out)
        assert (used["caller"], used["connections"], used["waiting"]) == ("address:127.0.0.1/32", 1, 0)
        assert "address:127.0.0.1/32" in cli("quota", "list", "--usage").out
    finally:
        assert cli("quota", "remove", "address:127.0.0.0/8").code == 0


def test_invalid_quota_is_refused(cli: Cli) -> None:
    assert "at least one limit" in cli("quota", "set", "ann").err
    assert cli("quota", "set", "ann", "--requests", "many").code == 2
    assert cli("quota", "set", "ann", "--produce-bytes", "10M").code == 2
    assert "is not a network" in cli("quota", "set", "address:here", "--requests", 1).err
    assert "no quota" in cli("quota", "remove", "ann").err
