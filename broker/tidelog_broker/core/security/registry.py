"""API keys, users, rules and quotas, as defined by the security records of `__meta`.

The highest revision of an id wins, and a deletion is final: ids of keys, rules and quotas are random. Deletions are
kept in memory while the process runs, because a snapshot that was started before a deletion may be written after it;
snapshots do not contain deletions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.security.quota_rules import Quotas
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

KEYS_MAX: Final = 10_000
RULES_MAX: Final = 10_000
QUOTAS_MAX: Final = 10_000
PAGE_ENTRIES: Final = 1_000

USERS_MAX: Final = 10_000

KEY: Final = "key/"
RULE: Final = "rule/"
USER: Final = "user/"
QUOTA: Final = "quota/"
SCRAM_RECORD_ID: Final = "secret/scram"
"""Id of the record with the secret from which the salts of unknown users are derived."""


ADMIN_BY_RECORD: Final = (
    "an API key or user in the cluster's records cannot act as the administrator of the settings: use a key of the "
    "node's admin_key_file (tidelog key new creates one), or set `admin` to another name"
)
"""Message for credentials whose record names the administrator. They are refused, because any caller with the
permission `cluster` can create such a record."""


class SecurityRegistry:
    """Provides keys, users, rules and quotas by id, up to the applied position of `__meta`.

    Args:
        admins: principals that may do everything.
    """

    def __init__(self, admins: Collection[str] = ()) -> None:
        self.permissions = Permissions(admins)
        self.quotas = Quotas(admins)
        self._by_id: dict[str, pb.SecurityRecord] = {}
        self._user_ids: dict[str, str] = {}

    @property
    def changes(self) -> int:
        """Incremented by every change of an identity or a rule."""
        return self.permissions.changes

    def apply(self, record: pb.SecurityRecord) -> bool:
        """Apply a durable record; return whether it changed anything."""
        current = self._by_id.get(record.id)
        if current is not None and current.revision >= record.revision:
            return False
        stored = pb.SecurityRecord()
        stored.CopyFrom(record)
        if stored.deleted:
            stored.ClearField("what")
        self._by_id[record.id] = stored
        quota_id = record.id.removeprefix(QUOTA)
        if stored.HasField("quota"):
            self.quotas.put(stored.quota)
            return True
        if quota_id != record.id:
            self.quotas.drop(quota_id)
            return True
        self.permissions.changes += 1
        if current is not None and current.HasField("user") and self._user_ids.get(current.user.name) == record.id:
            del self._user_ids[current.user.name]
        if stored.HasField("user"):
            self._user_ids[stored.user.name] = record.id
        rule_id = record.id.removeprefix(RULE)
        if stored.HasField("rule"):
            self.permissions.put(stored.rule)
        elif rule_id != record.id:
            self.permissions.drop(rule_id)
        return True

    def key(self, key_id: str) -> pb.ApiKey | None:
        """Return an API key; None if it does not exist or was revoked."""
        record = self._by_id.get(KEY + key_id)
        return record.api_key if record is not None and record.HasField("api_key") else None

    def user(self, name: str) -> pb.ScramUser | None:
        """Return a user by name; None if it does not exist."""
        user_id = self._user_ids.get(name)
        return None if user_id is None else self._by_id[user_id].user

    def scram_secret(self) -> bytes:
        """Return the secret from which salts of unknown users are derived; empty until the first user is created."""
        record = self._by_id.get(SCRAM_RECORD_ID)
        return b"" if record is None else record.scram_secret

    def scram_users(self) -> Iterator[pb.ScramUser]:
        """Yield the existing users."""
        yield from (self._by_id[user_id].user for user_id in self._user_ids.values())

    def api_keys(self) -> Iterator[pb.ApiKey]:
        """Yield the keys that are not revoked, expired ones included."""
        yield from (record.api_key for record in self._by_id.values() if record.HasField("api_key"))

    def vouches_for(self, identity: str, principal: str) -> bool:
        """Return whether an identity record still exists and names this principal."""
        record = self._by_id.get(identity)
        if record is None:
            return False
        return principal == (record.user.name if record.HasField("user") else record.api_key.principal)

    def get(self, record_id: str) -> pb.SecurityRecord | None:
        """Return a record, also a deletion; None for an unknown id."""
        return self._by_id.get(record_id)

    def exists(self, record_id: str) -> bool:
        """Return whether a record exists and is not a deletion."""
        record = self._by_id.get(record_id)
        return record is not None and not record.deleted

    def next_of(self, record_id: str) -> pb.SecurityRecord:
        """Return an empty next revision of a record, to be filled in by the owner of `__meta`."""
        current = self._by_id.get(record_id)
        return pb.SecurityRecord(id=record_id, revision=1 if current is None else current.revision + 1)

    def count(self, prefix: str) -> int:
        """Return the number of existing records of a kind."""
        return sum(1 for record in self._by_id.values() if not record.deleted and record.id.startswith(prefix))

    def check_limit(self, prefix: str) -> None:
        """Refuse another record of a kind that has reached its maximum.

        Raises:
            ProtocolError: INVALID_REQUEST.
        """
        command = {KEY: "key", RULE: "acl", USER: "user", QUOTA: "quota"}[prefix]
        most = {KEY: KEYS_MAX, RULE: RULES_MAX, USER: USERS_MAX, QUOTA: QUOTAS_MAX}[prefix]
        if self.count(prefix) >= most:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the cluster has the maximum of {most} {prefix.rstrip('/')} records; delete unused ones; list them "
                f"with: tidelog {command} list",
            )

    def page(self, prefix: str, after: str, entries: int = PAGE_ENTRIES) -> tuple[list[pb.SecurityRecord], bool]:
        """Return the records of a kind with ids after `after`, and whether there are more."""
        ids = sorted(
            record.id
            for record in self._by_id.values()
            if not record.deleted and record.id.startswith(prefix) and record.id > after
        )
        return [self._by_id[record_id] for record_id in ids[:entries]], len(ids) > entries

    def records(self) -> Iterator[pb.SecurityRecord]:
        """Yield the existing records, for a snapshot."""
        yield from (record for record in self._by_id.values() if not record.deleted)


def to_meta_record(record: pb.SecurityRecord) -> pb.MetaRecord:
    """Return a record as a record of `__meta`."""
    return pb.MetaRecord(security=record)
