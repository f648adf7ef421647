from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bootstraps import make_bootstrap, save
from tests.broker.stand import Stand

from tidelog_broker.base.bootstrap import BootstrapError, Founder
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.node import join
from tidelog_broker.node.join import as_founded, open_founding
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_proto.process.settings import SettingsError


def settings_of(**told: Any) -> NodeSettings:
    return NodeSettings.model_validate(told)


def founder(**told: Any) -> Founder:
    return Founder.model_validate(told)


BOOTSTRAP = make_bootstrap(
    "orders",
    [
        founder(node_id="log1", host="127.0.0.2", port=7500, zone="east", roles=("persistence",)),
        founder(node_id="log2", host="127.0.0.3", port=7500, gossip_port=7600),
    ],
)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("  0123456789abcdef\n")
    path.chmod(0o640)  # a group may be trusted: that is how a container's user gets to read what root has
    return path


@pytest.fixture
def bootstrap(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    save(BOOTSTRAP, path)
    return path


async def test_node_without_bootstrap_or_seeds_has_no_cluster(tmp_path: Path) -> None:
    opened = await open_founding(settings_of(data=tmp_path / "d"))
    opened.directory.close()
    assert opened.founding is None
    assert opened.directory.admitted
    with pytest.raises(SettingsError, match="--replace"):
        await open_founding(settings_of(data=tmp_path / "d"), replaces=True)


async def test_founder_takes_defaults_from_the_bootstrap_file(tmp_path: Path, bootstrap: Path, secret: Path) -> None:
    settings = settings_of(data=tmp_path / "d", bootstrap=bootstrap, secret_file=secret, node_id="log1")
    opened = await open_founding(settings)
    opened.directory.close()
    assert (opened.directory.node_id, opened.directory.cluster_id) == ("log1", BOOTSTRAP.cluster_id_bytes)
    assert not opened.directory.admitted
    found = opened.settings
    assert (found.host, found.port, found.gossip_port, found.zone) == ("127.0.0.2", 7500, 7500, "east")
    assert found.roles == ["persistence"]
    assert opened.founding is not None
    assert opened.founding.secrets.first == b"0123456789abcdef"
    again = await open_founding(settings_of(data=tmp_path / "d", bootstrap=bootstrap, secret_file=secret))
    again.directory.close()
    assert again.settings.port == 7500, "the directory has the node's identity"


def test_settings_override_the_bootstrap_file(tmp_path: Path) -> None:
    settings = settings_of(data=tmp_path, host="0.0.0.0", port=9)
    found = as_founded(settings, BOOTSTRAP, "log2")
    assert (found.host, found.port, found.gossip_port) == ("0.0.0.0", 9, 7600)
    assert found.advertised_host == "127.0.0.3", "others cannot connect to an unspecified address"
    assert as_founded(settings, BOOTSTRAP, "joiner") is settings


def test_founder_on_another_port_advertises_the_files_port(tmp_path: Path) -> None:
    found = as_founded(settings_of(data=tmp_path, port=9, gossip_port=10), BOOTSTRAP, "log2")
    assert (found.port, found.gossip_port) == (9, 10)
    assert (found.advertise_port, found.advertise_gossip_port) == (7500, 7600)
    told = as_founded(settings_of(data=tmp_path, port=9, advertise_port=11), BOOTSTRAP, "log2")
    assert told.advertise_port == 11


async def test_node_missing_in_the_bootstrap_file_is_refused(tmp_path: Path, bootstrap: Path, secret: Path) -> None:
    settings = settings_of(data=tmp_path / "d", bootstrap=bootstrap, secret_file=secret, node_id="log9")
    with pytest.raises(BootstrapError, match="log9"):
        await open_founding(settings)
    assert not (tmp_path / "d").exists()


async def test_joiner_uses_the_cluster_of_an_answering_seed(tmp_path: Path, stand: Stand, secret: Path) -> None:
    node = await stand.start()
    seeds = ["127.0.0.1:1", f"127.0.0.1:{node.port}"]
    opened = await open_founding(settings_of(data=tmp_path / "joiner", seeds=seeds, secret_file=secret))
    opened.directory.close()
    assert opened.directory.cluster_id == node.broker.cluster_id
    assert opened.founding is not None
    assert [(seed.node_id, seed.address) for seed in opened.founding.seeds] == [
        (node.node_id, ("127.0.0.1", node.port))
    ]


async def test_id_of_the_seed_is_refused(tmp_path: Path, stand: Stand, secret: Path) -> None:
    node = await stand.start()
    seeds = [f"127.0.0.1:{node.port}"]
    settings = settings_of(data=tmp_path / "twin", seeds=seeds, secret_file=secret, node_id=node.node_id)
    with pytest.raises(NodeDirError, match=rf"node '{node.node_id}' is already running at 127\.0\.0\.1:{node.port}"):
        await open_founding(settings)
    assert not settings.data.exists()


async def test_new_node_needs_an_answering_seed_and_a_known_one_does_not(
    tmp_path: Path, bootstrap: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "SEEDS_PATIENCE_S", 0.0)
    settings = settings_of(data=tmp_path / "d", seeds=["127.0.0.1:1"], secret_file=secret)
    with pytest.raises(NodeDirError, match="none of the seeds"):
        await open_founding(settings)
    old = await open_founding(settings_of(data=tmp_path / "d", bootstrap=bootstrap, secret_file=secret, node_id="log1"))
    old.directory.close()
    opened = await open_founding(settings)
    opened.directory.close()
    assert opened.directory.cluster_id == BOOTSTRAP.cluster_id_bytes
