"""API keys, rules and quotas with the asynchronous client, on a real node without authentication."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidelog import Client
from tidelog.errors import InvalidRequestError
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota


async def test_keys_and_rules_are_created_listed_and_removed(shared_node: str) -> None:
    async with Client(shared_node) as client:
        made = await client.security.create_key("ann", roles=["b", "a"], note="of a test")
        assert made.info in await client.security.api_keys()
        page, more = await client.security.key_page()
        assert (made.info in page, more) == (True, "")
        assert made.info not in (await client.security.key_page(after="key0"))[0], "ids follow the name of their kind"
        assert (made.info.principal, made.info.roles, made.info.expires_us) == ("ann", ("a", "b"), None)
        rule = await client.security.grant(AccessRule("ann", ("group", "describe"), "group", "g", prefix=True))
        assert rule in await client.security.rules()
        verdict = await client.security.test("describe", "group", "g1", principal="ann")
        assert (verdict.allowed, rule.rule_id in verdict.because) == (True, True)
        assert not (await client.security.test("describe", "group", "h", principal="ann")).allowed
        await client.security.revoke(rule.rule_id)
        await client.security.revoke_key(made.info.key_id)
        assert rule not in await client.security.rules()
        assert made.info not in await client.security.api_keys()
        with pytest.raises(InvalidRequestError, match="unknown operation or resource 'read'"):
            await client.security.grant(AccessRule("ann", ("read",), "topic", "t"))


async def test_an_unknown_operation_or_resource_is_an_invalid_request(shared_node: str) -> None:
    operation: Any = "read"
    resource: Any = "table"
    async with Client(shared_node) as client:
        for ask in (client.security.test, client.security.check):
            with pytest.raises(InvalidRequestError, match="unknown operation or resource 'read'; operations: produce"):
                await ask(operation, "topic", "t")
            with pytest.raises(InvalidRequestError, match="unknown operation or resource 'table'"):
                await ask("consume", resource, "t")


async def test_quotas_are_set_listed_and_removed(shared_node: str) -> None:
    async with Client(shared_node) as client:
        quota = Quota(produce_bytes=1 << 20, requests=math.inf, topics=0)
        await client.security.set_quota("ann", Quota(partitions=1))
        await client.security.set_quota("ann", quota)
        assert (await client.security.quotas())["ann"] == quota
        assert await client.security.quota_usage() == [], "without authentication there are no principals"
        await client.security.remove_quota("ann")
        assert "ann" not in await client.security.quotas()
        with pytest.raises(InvalidRequestError, match="has no quota"):
            await client.security.remove_quota("ann")
        for wrong in (-1, math.nan, 2.0**64):
            with pytest.raises(InvalidRequestError, match="topics must be"):
                await client.security.set_quota("ann", Quota(topics=wrong))
        with pytest.raises(InvalidRequestError, match=">= 4096"):
            await client.security.set_quota("ann", Quota(produce_bytes=0))


async def test_users_are_created_listed_and_deleted(shared_node: str) -> None:
    async with Client(shared_node) as client:
        made = await client.security.create_user("of \u00e4 test", "long enough", roles=["b", "a"])
        assert made in await client.security.users()
        assert (made.name, made.roles) == ("of \u00e4 test", ("a", "b"))
        changed = await client.security.set_password("of \u00e4 test", "another one")
        assert changed.changed_us > made.changed_us
        assert changed in await client.security.users()
        for name, password in (("ben", "short"), ("ben", "with\nnewline"), ("", "long enough"), ("ben", "x" * 1025)):
            with pytest.raises(InvalidRequestError) as refused:
                await client.security.create_user(name, password)
            assert password not in str(refused.value)
        await client.security.delete_user("of \u00e4 test")
        assert changed not in await client.security.users()
