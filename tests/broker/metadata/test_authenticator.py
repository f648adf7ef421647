"""Authentication by API key: lookup, comparison and caching."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.keyed import ADMIN

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.security.api_keys import slow_hash
from tidelog_broker.core.security.registry import KEY, SecurityRegistry
from tidelog_broker.metadata.admin_keys import AdminKeys
from tidelog_broker.metadata.authenticator import Authenticator
from tidelog_broker.metadata.credential_work import CredentialWork
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.api_key import new_key
from tidelog_proto.errors import ProtocolError

SALT = b"s" * 16


@pytest.fixture
async def offload() -> AsyncIterator[Offload]:
    workers = IoWorkers(1, name="secret")
    yield Offload(workers, asyncio.get_running_loop())
    workers.close()


async def test_recorded_key_of_the_administrator_is_refused(offload: Offload, key_file: Path) -> None:
    registry = SecurityRegistry(["admin"])
    authenticator = Authenticator(
        registry, admin_keys=AdminKeys(key_file), admin="admin", work=CredentialWork(offload), tokens=None,
        now_us=lambda: 1,
    )  # fmt: skip
    key = new_key()
    kept = pb.ApiKey(key_id=key.key_id, principal="admin", salt=SALT, secret_hash=slow_hash(key.secret, SALT))
    registry.apply(pb.SecurityRecord(id=KEY + key.key_id, revision=1, api_key=kept))
    with pytest.raises(ProtocolError, match="an API key or user in the cluster's records cannot act") as refused:
        await authenticator.session_of(pb.Credentials(api_key=key.text), address="")
    assert refused.value.code == pb.UNAUTHENTICATED
    session = await authenticator.session_of(pb.Credentials(api_key=ADMIN), address="")
    assert session.principal == "admin"


async def test_key_is_valid_until_it_expires_or_is_revoked(offload: Offload, key_file: Path) -> None:
    now_us = 1_000
    registry = SecurityRegistry(["admin"])
    authenticator = Authenticator(
        registry,
        admin_keys=AdminKeys(key_file),
        admin="admin",
        work=CredentialWork(offload),
        tokens=None,
        now_us=lambda: now_us,
    )

    async def code(text: str) -> int:
        try:
            session = await authenticator.session_of(pb.Credentials(api_key=text), address="")
        except ProtocolError as error:
            return error.code
        assert session.principal in {"ann", "admin"}
        return 0

    key = new_key()
    kept = pb.ApiKey(
        key_id=key.key_id, principal="ann", expires_us=2_000, salt=SALT, secret_hash=slow_hash(key.secret, SALT)
    )
    assert await code(key.text) == pb.UNAUTHENTICATED
    registry.apply(pb.SecurityRecord(id=KEY + key.key_id, revision=1, api_key=kept))
    assert [await code(text) for text in (key.text, key.text, ADMIN)] == [0, 0, 0]
    assert await code(key.text[:-4] + "AAAA") == pb.UNAUTHENTICATED
    assert await code("tlk_") == pb.UNAUTHENTICATED
    now_us = 2_000
    assert await code(key.text) == pb.CREDENTIALS_EXPIRED
    now_us = 1_000
    registry.apply(pb.SecurityRecord(id=KEY + key.key_id, revision=2, deleted=True))
    assert await code(key.text) == pb.UNAUTHENTICATED
    for shown in (pb.Credentials(), pb.Credentials(token="a.b.c")):
        with pytest.raises(ProtocolError) as refused:
            await authenticator.session_of(shown, address="")
        assert refused.value.code == pb.UNAUTHENTICATED
