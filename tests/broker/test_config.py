"""The node's settings: defaults, sources, and errors that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_broker.config import NodeSettings
from tidelog_proto.settings import SettingsError, load_settings


def load(**overrides: object) -> NodeSettings:
    return load_settings(NodeSettings, "node", None, {"data": "/d", **overrides}, environ={})


def test_a_data_directory_is_all_that_must_be_said() -> None:
    settings = load()
    assert (settings.port, settings.management_port, settings.data) == (7400, 7401, Path("/d"))
    with pytest.raises(SettingsError, match="data"):
        load_settings(NodeSettings, "node", None, {}, environ={})


def test_a_misspelt_key_gets_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[node]\ndata = "x"\nio_worker = 3\n')
    with pytest.raises(SettingsError, match="io_workers"):
        load_settings(NodeSettings, "node", file, {}, environ={})


def test_clients_are_told_an_address_that_they_can_reach() -> None:
    assert load(host="0.0.0.0").advertised_host == "127.0.0.1"
    assert load(host="10.0.0.1").advertised_host == "10.0.0.1"
    assert load(advertise_host="broker.example").advertised_host == "broker.example"
    with pytest.raises(SettingsError, match="unspecified"):
        load(advertise_host="::")
