"""The bootstrap file: canonical form, validation and errors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.bootstraps import make_bootstrap, save

from tidelog_broker.base.bootstrap import (
    FILE_BYTES_MAX,
    Bootstrap,
    BootstrapError,
    Founder,
    load_bootstrap,
    open_directory,
    roles_named,
)
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.core.placement.placement import BOTH_ROLES, Role
from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_cli.cluster.founding_files import bootstrap_document
from tidelog_proto import broker_pb2 as pb

CLUSTER = bytes(range(16))


def founder(number: int, **fields: Any) -> Founder:
    return Founder(**{"node_id": f"log{number}", "host": f"log{number}.example.org", "port": 7400, **fields})


def three() -> Bootstrap:
    return make_bootstrap("orders", [founder(number) for number in (1, 2, 3)], cluster_id=CLUSTER)


def settings(path: Path, **fields: Any) -> NodeSettings:
    return NodeSettings(data=path, **fields)


def content(**changes: Any) -> dict[str, Any]:
    nodes = [{"node_id": name, "host": "h", "port": port} for name, port in (("a", 1), ("b", 2))]
    return {"format_version": 1, "cluster_id": CLUSTER.hex(), "name": "orders", "nodes": nodes, **changes}


def load(tmp_path: Path, document: object) -> Bootstrap:
    path = tmp_path / "bootstrap.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
    return load_bootstrap(path)


def test_bootstrap_file_round_trips(tmp_path: Path) -> None:
    made = three()
    save(made, tmp_path / "b.json")
    loaded = load_bootstrap(tmp_path / "b.json")
    assert loaded == made
    assert loaded.hash == made.hash
    assert loaded.cluster_id_bytes == CLUSTER


def test_canonical_bytes_are_stable() -> None:
    """Founders of two versions compare their hash."""
    one = make_bootstrap("orders", [founder(1, zone="öst", roles=("persistence", "ingestion"))], cluster_id=CLUSTER)
    expected = (
        rb'{"cluster_id":"000102030405060708090a0b0c0d0e0f","format_version":1,"name":"orders","nodes":[{"gossip_port":'
        rb'7400,"host":"log1.example.org","node_id":"log1","port":7400,"roles":["ingestion","persistence"],"zone":'
        rb'"\u00f6st"}]}'
    )
    assert one.canonical_bytes() == expected
    assert one.hash == hashlib.sha256(expected).digest()


def test_formatting_does_not_change_the_hash(tmp_path: Path) -> None:
    plain = content()
    spelt_out = content()
    spelt_out["nodes"] = [
        {**node, "gossip_port": node["port"], "zone": "default", "roles": ["persistence", "ingestion"]}
        for node in reversed(plain["nodes"])
    ]
    assert load(tmp_path, plain).hash == load(tmp_path, json.dumps(spelt_out, indent=7)).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"cluster_id": "ff" * 16},
        {"nodes": content()["nodes"][:1]},
        {"nodes": [*content()["nodes"][:1], {"node_id": "b", "host": "h", "port": 3}]},
        {"nodes": [*content()["nodes"][:1], {"node_id": "b", "host": "h", "port": 2, "zone": "west"}]},
    ],
)
def test_content_changes_the_hash(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert load(tmp_path, content()).hash != load(tmp_path, content(**changes)).hash


def node(**fields: Any) -> dict[str, Any]:
    return {"node_id": "a", "host": "h", "port": 1, **fields}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ({}, "format_version"),
        (content(format_version=2), "format_version"),
        (content(color="red"), "color: unknown key"),
        (content(cluster_id="0011"), "cluster_id"),
        (content(cluster_id="FF" * 16), "cluster_id"),
        (content(name=""), "name"),
        (content(nodes=[]), "nodes"),
        (content(nodes=[node(zoen="east")]), "nodes.0.zoen: unknown key"),
        (content(nodes=[node(), node(port=2)]), "duplicate node id 'a'"),
        (content(nodes=[node(), node(node_id="b")]), "duplicate address 'h:1'"),
        (content(nodes=[node(), node(node_id="b", port=2, gossip_port=1)]), "duplicate gossip address 'h:1'"),
        (content(nodes=[node(roles=["ingestion"])]), "persistence"),
        (content(nodes=[node(roles=["owner"])]), "nodes.0.roles.0"),
        (content(nodes=[node(roles=["ingestion", "ingestion"])]), "must be listed only once"),
        (content(nodes=[node(roles=[])]), "nodes.0.roles"),
        (content(nodes=[node(port=0)]), "nodes.0.port"),
        (content(nodes=[node(gossip_port=0)]), "nodes.0.gossip_port"),
        (content(nodes=[node(node_id="a\nb")]), "nodes.0.node_id"),
        (content(nodes=[node(host=" ")]), "nodes.0.host"),
        (content(nodes=[node(node_id="x" * 201)]), "nodes.0.node_id"),
    ],
)
def test_invalid_content_is_refused_with_its_position(tmp_path: Path, document: object, says: str) -> None:
    with pytest.raises(BootstrapError) as caught:
        load(tmp_path, document)
    assert says in str(caught.value)
    assert str(tmp_path / "bootstrap.json") in str(caught.value)


def test_missing_or_oversized_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="No such file"):
        load_bootstrap(tmp_path / "none")
    with pytest.raises(BootstrapError, match="larger than"):
        load(tmp_path, " " * (FILE_BYTES_MAX + 1))
    with pytest.raises(BootstrapError, match="persistence"):
        load(tmp_path, bootstrap_document("x", [founder(1, roles=("ingestion",)).model_dump(mode="json")]))


def test_genesis_epoch_has_no_owner() -> None:
    assert three().genesis() == pb.EpochDescriptor(
        epoch=0, placement=["log1", "log2", "log3"], ack_quorum=2, flush=pb.ALWAYS
    )
    roles = [("ingestion",), *[("ingestion", "persistence")] * 4, ("persistence",), ("persistence",)]
    many = make_bootstrap("x", [founder(9 - number, roles=chosen) for number, chosen in enumerate(roles)])
    genesis = many.genesis()
    assert [*genesis.placement] == ["log3", "log4", "log5", "log6", "log7"]
    assert genesis.ack_quorum == 3


def test_founders_records_are_replaced_by_newer_ones() -> None:
    registry = NodeRegistry()
    for record in three().records():
        assert registry.apply(record)
    assert [(entry.node_id, entry.roles, entry.weight) for entry in registry.entries()] == [
        (f"log{number}", BOTH_ROLES, 100) for number in (1, 2, 3)
    ]
    said = three().records()[0]
    said.incarnation = 1 << 24
    written = registry.announced(said)
    assert written is not None
    assert registry.apply(written)
    assert not any(registry.apply(record) for record in three().records())


def test_roles_are_parsed_by_name() -> None:
    assert roles_named(["persistence"]) == Role.PERSISTENCE
    assert roles_named(["persistence", "ingestion"]) == BOTH_ROLES


def test_founder_opens_the_directory_of_its_cluster(tmp_path: Path) -> None:
    directory = open_directory(settings(tmp_path / "d", node_id="log2"), three())
    assert (directory.node_id, directory.cluster_id, directory.admitted) == ("log2", CLUSTER, False)
    directory.close()
    again = open_directory(settings(tmp_path / "d"), three())
    assert again.node_id == "log2"
    again.close()
    with pytest.raises(BootstrapError, match=r"'log9' is not in the bootstrap file of cluster 'orders'.*log1, log2"):
        open_directory(settings(tmp_path / "new", node_id="log9"), three())
    assert not (tmp_path / "new").exists()
    other = make_bootstrap("other", [founder(2)])
    with pytest.raises(NodeDirError, match="belongs to the cluster"):
        open_directory(settings(tmp_path / "d", node_id="log2"), other)


def test_joiner_gets_an_id_and_founds_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(NodeDirError, match="none of the seeds log1:7400 has reported"):
        open_directory(settings(tmp_path / "d", seeds=["log1:7400"]), None)
    assert not (tmp_path / "d").exists()
    joiner = open_directory(settings(tmp_path / "d", seeds=["log1:7400"]), None, seeds_cluster_id=CLUSTER)
    assert (joiner.cluster_id, joiner.admitted) == (CLUSTER, False)
    assert joiner.node_id.startswith("node-")
    joiner.close()
    again = open_directory(settings(tmp_path / "d", seeds=["log1:7400"]), None)
    assert again.cluster_id == CLUSTER
    again.close()


def test_single_node_and_replacement_open_their_directories(tmp_path: Path) -> None:
    single = open_directory(settings(tmp_path / "s"), None)
    assert single.admitted
    single.close()
    new = open_directory(settings(tmp_path / "r", node_id="log2"), three(), replaces=True)
    assert new.node_id not in {"log1", "log2", "log3"}
    assert new.cluster_id == CLUSTER
    new.close()
