"""The node's settings: defaults, sources and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_broker.base.config import NodeSettings
from tidelog_proto.process.settings import SettingsError, load_settings


def load(**overrides: object) -> NodeSettings:
    return load_settings(NodeSettings, "node", None, {"data": "/d", **overrides}, environ={})


def test_data_directory_is_the_only_required_setting() -> None:
    settings = load()
    assert (settings.port, settings.management_port, settings.data) == (7400, 7401, Path("/d"))
    with pytest.raises(SettingsError, match="data"):
        load_settings(NodeSettings, "node", None, {}, environ={})


def test_misspelt_key_gets_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[node]\ndata = "x"\nio_worker = 3\n')
    with pytest.raises(SettingsError, match="io_workers"):
        load_settings(NodeSettings, "node", file, {}, environ={})


@pytest.mark.parametrize("name", ["admin ", "\uff41dmin", "*", "role:admin"])
def test_administrator_must_be_a_valid_principal(name: str) -> None:
    with pytest.raises(SettingsError, match="name"):
        load(admin=name)


def test_advertised_address_is_reachable() -> None:
    assert load(host="0.0.0.0").advertised_host == "127.0.0.1"
    assert load(host="0.0.0.0").advertises_loopback
    assert not load(host="0.0.0.0", advertise_host="broker.example").advertises_loopback
    assert not load().advertises_loopback
    assert load(host="10.0.0.1").advertised_host == "10.0.0.1"
    assert load(advertise_host="broker.example").advertised_host == "broker.example"
    with pytest.raises(SettingsError, match="unspecified"):
        load(advertise_host="::")


def test_node_without_bootstrap_or_seeds_is_alone() -> None:
    settings = load()
    assert (settings.bootstrap, settings.seeds, settings.node_id, settings.gossip_port) == (None, [], None, None)
    assert (settings.roles, settings.weight, settings.replication_factor_default) == (
        ["ingestion", "persistence"],
        100,
        3,
    )
    environ = {"TIDELOG_NODE_SEEDS": "log1:7400, [::1]:7401", "TIDELOG_NODE_ROLES": "persistence,ingestion"}
    told = load_settings(NodeSettings, "node", None, {"data": "/d"}, environ=environ)
    assert told.seeds == ["log1:7400", "[::1]:7401"]
    assert told.roles == ["ingestion", "persistence"]


@pytest.mark.parametrize("seed", ["log1", ":7400", "log1:", "log1:0", "log1:65536", "log1:x", "log1:²"])
def test_seed_must_be_an_address(seed: str) -> None:
    with pytest.raises(SettingsError, match="HOST:PORT"):
        load(seeds=[seed])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("roles", []),
        ("roles", ["ingestion", "ingestion"]),
        ("roles", ["owner"]),
        ("roles", ["persistence"]),
        ("weight", 0),
        ("weight", 10_001),
        ("replication_factor_default", 0),
        ("gossip_port", 65536),
        ("node_id", ""),
        ("seeds", ["a:1"] * 65),
        ("fill_bytes_per_s", -1),
        ("fill_bytes_per_s", 1000),
    ],
)
def test_cluster_settings_have_limits(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=key):
        load(**{key: value})


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"engine_default": "segment-shared"}, "file_model_default to shared"),
        ({"engine_default": "memory-async"}, "flush to async when a topic is created"),
        ({"engine_default": "rocksdb", "file_model_default": "shared"}, "needs engine_default = segment, got rocksdb"),
        ({"file_model_default": "own"}, "file_model_default"),
    ],
)
def test_storage_of_new_topics_must_exist(settings: dict[str, object], remedy: str) -> None:
    with pytest.raises(SettingsError, match=remedy):
        load(**settings)


def test_new_topics_may_share_files() -> None:
    assert load().file_model_default == "per-partition"
    assert load(file_model_default="shared").engine_default == "segment"
