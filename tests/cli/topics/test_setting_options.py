from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tidelog_cli.topics.setting_options import option_names, with_setting_options
from tidelog_proto.topic_settings import ALTERABLE, TOPIC_SETTINGS


@pytest.fixture
def given() -> dict[str, Any]:
    return {}


@pytest.fixture
def app(given: dict[str, Any]) -> typer.Typer:
    @with_setting_options
    def command(name: str, *, loud: bool = False, **settings: Any) -> None:
        given.update(settings, name=name, loud=loud)

    made = typer.Typer()
    made.command()(command)
    return made


def test_each_setting_has_an_option_with_its_unit_and_range(app: typer.Typer, given: dict[str, Any]) -> None:
    values = {
        "--flush": "interval",
        "--flush-interval": "5s",
        "--retention-time": "7d",
        "--retention-bytes": "1MiB",
        "--compaction-lag-ms": "90",
        "--deduplicate": "10m",
        "--dirty-percent": "30",
        "--index": "key",
    }
    arguments = ["t", "--loud", "--no-hold", *(part for pair in values.items() for part in pair)]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    assert given == {
        "name": "t",
        "loud": True,
        "hold": False,
        "flush": "interval",
        "flush_interval_ms": 5000,
        "retention_ms": 7 * 86_400_000,
        "retention_bytes": 2**20,
        "compaction_lag_ms": 90,
        "deduplicate_s": 600,
        "dirty_percent": 30,
        "index_key": True,
        "index_tag": False,
    }
    help_text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300"}).output
    for name in ALTERABLE:
        assert option_names(TOPIC_SETTINGS[name])[0] in help_text


def test_settings_that_are_not_given_are_missing(app: typer.Typer, given: dict[str, Any]) -> None:
    assert CliRunner().invoke(app, ["t"]).exit_code == 0
    assert given == {"name": "t", "loud": False}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--flush", "often"),
        ("--dirty-percent", "101"),
        ("--partitions", "0"),
        ("--retention-time", "soon"),
        ("--deduplicate", "500ms"),
        ("--tombstone-retention", "0"),
        ("--index", "value"),
        ("--index", "key,none"),
    ],
)
def test_wrong_value_is_a_usage_error_that_names_the_option(
    app: typer.Typer, given: dict[str, Any], arguments: tuple[str, str]
) -> None:
    ended = CliRunner().invoke(app, ["t", *arguments], terminal_width=300)
    assert (ended.exit_code, given) == (2, {})
    assert arguments[0] in ended.output
