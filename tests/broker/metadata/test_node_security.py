from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.broker.issuer import Issuer
from tests.broker.keyed import ADMIN

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.metadata.node_security import NodeSecurity
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.process.settings import SettingsError


@pytest.fixture
async def workers() -> AsyncIterator[Offload]:
    threads = IoWorkers(1, name="secret")
    yield Offload(threads, asyncio.get_running_loop())
    threads.close()


def opened(workers: Offload, **settings: Any) -> NodeSecurity:
    return NodeSecurity(NodeSettings.model_validate({"data": "data"} | settings), workers, NodeMetrics())


async def test_without_auth_no_file_is_read(workers: Offload, tmp_path: Path) -> None:
    security = opened(workers, admin_key_file=tmp_path / "none", **Issuer().settings(tmp_path / "none"))
    assert security.authenticator is None
    await security.follow_jwks()
    await security.follow_files()
    with pytest.raises(SettingsError, match="cannot read the keys of admin_key_file"):
        opened(workers, auth="required", admin_key_file=tmp_path / "none")
    with pytest.raises(SettingsError, match="cannot read jwt_jwks"):
        opened(workers, auth="required", **Issuer().settings(tmp_path / "none"))


async def test_removed_keys_end_identities_of_files_and_issuers(
    workers: Offload, tmp_path: Path, key_file: Path
) -> None:
    issuer = Issuer()
    settings = {"auth": "required", "admin_key_file": key_file} | issuer.settings(issuer.save(tmp_path / "jwks"))
    security = opened(workers, **settings)
    assert security.authenticator is not None
    for credentials in (pb.Credentials(api_key=ADMIN), pb.Credentials(token=issuer.token())):
        session = await security.authenticator.session_of(credentials, address="")
        assert security.ended_because(session.identity) == ""
    assert "admin_key_file" in security.ended_because("file/other")
    assert "issuer" in security.ended_because("jwt/other")
    assert security.ended_because("key/other") == ""


def test_tokens_need_an_issuer_an_audience_and_a_safe_source() -> None:
    for wrong in ({"jwt_issuer": None}, {"jwt_audience": None}, {"jwt_jwks": "http://issuer.example/"}):
        with pytest.raises(ValidationError, match=r"jwt_|https"):
            NodeSettings.model_validate({"data": "data"} | Issuer().settings("jwks") | wrong)
