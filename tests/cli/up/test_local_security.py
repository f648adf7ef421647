from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from tidelog.cluster.contexts import Context, change_contexts, find_context, read_contexts, with_context
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.metadata.admin_keys import read_admin_keys
from tidelog_cli.up.local_security import (
    GATEWAY_REFUSED,
    GATEWAY_VARIABLES,
    NODE_REFUSED,
    NODE_VARIABLES,
    secure,
    secured,
)
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.process.settings import load_settings


@pytest.fixture(autouse=True)
def _contexts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "config" / "contexts.json"))


def test_nodes_read_what_is_made_and_it_is_made_once(tmp_path: Path) -> None:
    data = tmp_path / "my data!"
    assert secured(data) is None
    made = secure(data, ["node1", "node2"])
    assert secured(data) == made
    settings = load_settings(NodeSettings, "node", Path(made.config("node1")[1]), {"data": data}, environ={})
    assert (settings.auth, settings.peer_auth) == ("required", "certificate")
    assert NodeTls.of(settings).is_on
    (key,) = read_admin_keys(settings.admin_key_file)
    for path in (made.admin_key, *made.certs.glob("*.key")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for directory in (made.data, made.certs):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
    before = {path.name: path.read_bytes() for path in (made.admin_key, *made.certs.iterdir())}
    secure(data, ["node1", "node2"])
    after = {path.name: path.read_bytes() for path in (made.admin_key, *made.certs.iterdir())}
    changed = {name for name in before if before[name] != after[name]}
    assert not changed & {"admin.key", "ca.pem", "ca.key"}
    assert {"node1.pem", "node1.key"} <= changed
    (made.certs / "ca.pem").unlink()  # as if the very first start had ended before it was written
    secure(data, ["node1"])
    assert NodeTls.of(settings).is_on
    name = made.keep_context("127.0.0.1:1,127.0.0.1:2")
    assert name == "mydata"
    assert find_context(name) == made.context("127.0.0.1:1,127.0.0.1:2")
    assert key.text not in json.dumps(made.gateway_environ())


def test_variables_for_another_cluster_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN_FILE", "USER", "PASSWORD_FILE", "API_KEY", "API_KEY_FILE", "TLS", "CRL_FILE", "BOOTSTRAP", "X"):
        monkeypatch.setenv(f"TIDELOG_{name}", "another's")
    for table, model in (("NODE", NodeSettings), ("GATEWAY", GatewaySettings)):
        for name in model.model_fields:
            monkeypatch.setenv(f"TIDELOG_{table}_{name}".upper(), "another's")
    monkeypatch.setenv("TIDELOG_GATEWAY_CONNECTIONS_MAX", "7")
    monkeypatch.setenv("TIDELOG_NODE_RING_BYTES", "8")
    for name in (*NODE_VARIABLES, *GATEWAY_VARIABLES):
        for table in ("NODE", "GATEWAY"):
            if os.environ.get(variable := f"TIDELOG_{table}_{name}".upper()) == "another's":
                monkeypatch.delenv(variable)
    made = secure(tmp_path / "data", ["node1"])
    command = {"data": tmp_path / "data"}
    config = Path(made.config("node1")[1])
    settings = load_settings(NodeSettings, "node", config, command, environ=made.node_environ())
    assert settings == load_settings(NodeSettings, "node", config, command, environ={"TIDELOG_NODE_RING_BYTES": "8"})
    ignored = made.variables_not_passed_on()
    assert {"TIDELOG_API_KEY", "TIDELOG_GATEWAY_ALLOWED_ORIGINS", "TIDELOG_NODE_AUTH", "TIDELOG_X"} <= set(ignored)
    assert not {"TIDELOG_NODE_RING_BYTES", "TIDELOG_BOOTSTRAP", "TIDELOG_CONTEXTS", "PATH"} & set(ignored)
    environ = made.gateway_environ()
    assert "another's" not in environ.values()
    assert environ["PATH"] == os.environ["PATH"]
    gateway = load_settings(GatewaySettings, "gateway", Path(made.config()[1]), {}, environ=environ)
    assert (gateway.auth, gateway.host, gateway.connections_max) == ("callers", "127.0.0.1", 7)


def test_variables_that_are_kept_are_settings_without_trust_or_addresses() -> None:
    for names in (NODE_VARIABLES, GATEWAY_VARIABLES):
        assert not any(
            re.search(r"host|port|auth|admin|key|cert|tls|jwt|audit|origin|secret|wrong|insecure", name)
            for name in names
        )


@pytest.mark.parametrize(
    ("kept", "refused", "model"),
    [
        pytest.param(NODE_VARIABLES, NODE_REFUSED, NodeSettings, id="node"),
        pytest.param(GATEWAY_VARIABLES, GATEWAY_REFUSED, GatewaySettings, id="gateway"),
    ],
)
def test_each_setting_is_kept_or_refused(
    kept: tuple[str, ...], refused: tuple[str, ...], model: type[NodeSettings | GatewaySettings]
) -> None:
    assert sorted([*kept, *refused]) == sorted(model.model_fields), "decide about a new setting, once"


def test_another_clusters_context_of_the_same_name_stays(tmp_path: Path) -> None:
    mine = Context(("log.example.org:7400",), api_key="tlk_kept_here_alone")
    change_contexts(lambda contexts: with_context(contexts, "orders", mine, instead=False, use=True))
    made, other = (secure(tmp_path / where / "orders", ["node1"]) for where in ("one", "two"))
    assert made.keep_context("127.0.0.1:1") == "orders-2"
    assert other.keep_context("127.0.0.1:2") == "orders-3"
    assert made.keep_context("127.0.0.1:3") == "orders-2"
    contexts = read_contexts()
    assert contexts.current == "orders"
    assert contexts.by_name == {
        "orders": mine,
        "orders-2": made.context("127.0.0.1:3"),
        "orders-3": other.context("127.0.0.1:2"),
    }
