from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tidelog.contexts import find_context
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.tls import NodeTls
from tidelog_broker.metadata.admin_keys import read_admin_keys
from tidelog_cli.local_security import secure, secured
from tidelog_proto.settings import load_settings


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
