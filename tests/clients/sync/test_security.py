"""API keys, users, rules and quotas with the blocking client, on a real node without authentication."""

from __future__ import annotations

import tidelog.sync
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota


def test_keys_rules_and_quotas_work(shared_node: str) -> None:
    with tidelog.sync.Client(shared_node) as client:
        made = client.security.create_key("ben")
        rule = client.security.grant(AccessRule("ben", ("produce",), "topic", "t", deny=True))
        assert made.info in client.security.api_keys()
        assert rule in client.security.rules()
        keys, rules = client.security.key_page(), client.security.rule_page()
        assert (made.info in keys[0], rule in rules[0], keys[1], rules[1]) == (True, True, "", "")
        assert not client.security.test("produce", "topic", "t", principal="ben").allowed
        client.security.revoke(rule.rule_id)
        client.security.revoke_key(made.info.key_id)


def test_users_are_created_and_deleted(shared_node: str) -> None:
    with tidelog.sync.Client(shared_node) as client:
        client.security.create_user("carl", "long enough")
        client.security.set_password("carl", "another one")
        assert [user.name for user in client.security.users() if user.name == "carl"] == ["carl"]
        client.security.delete_user("carl")
        client.security.set_quota("ben", Quota(partitions=2))
        assert client.security.quotas()["ben"] == Quota(partitions=2)
        assert client.security.quota_usage() == []
        client.security.remove_quota("ben")
