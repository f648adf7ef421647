"""Identities (API keys, users with passwords), rules and quotas: what the records of `__meta` add up to.

As with topics and nodes the highest revision of an id holds, and a deletion is final: ids of keys, rules and quotas are
chosen anew each time. What was deleted is remembered for as long as the process lives, because a snapshot that was
begun before a deletion may be written behind it; a snapshot itself leaves deletions out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.security.quotas import Quotas
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
MADE_UP: Final = "secret/scram"
"""The id of the secret of which the salts of users come that there are not."""


ADMIN_BY_RECORD: Final = (
    "no API key and no user of the cluster's records is the administrator of the settings: show a key of the node's "
    "admin_key_file (tidelog key new makes one), or set `admin` to another name"
)
"""Why a session of such a record is refused, which a caller with the permission `cluster` may have made."""


class SecurityRegistry:
    """Keys, users, rules and quotas by id, as far as `__meta` has been applied.

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
        """Rises with every change of an identity or a rule."""
        return self.permissions.changes

    def apply(self, record: pb.SecurityRecord) -> bool:
        """Take a durable record; return whether it changed anything."""
        standing = self._by_id.get(record.id)
        if standing is not None and standing.revision >= record.revision:
            return False
        kept = pb.SecurityRecord()
        kept.CopyFrom(record)
        if kept.deleted:
            kept.ClearField("what")
        self._by_id[record.id] = kept
        quota_id = record.id.removeprefix(QUOTA)
        if kept.HasField("quota"):
            self.quotas.put(kept.quota)
            return True
        if quota_id != record.id:
            self.quotas.drop(quota_id)
            return True
        self.permissions.changes += 1
        if standing is not None and standing.HasField("user") and self._user_ids.get(standing.user.name) == record.id:
            del self._user_ids[standing.user.name]
        if kept.HasField("user"):
            self._user_ids[kept.user.name] = record.id
        rule_id = record.id.removeprefix(RULE)
        if kept.HasField("rule"):
            self.permissions.put(kept.rule)
        elif rule_id != record.id:
            self.permissions.drop(rule_id)
        return True

    def key(self, key_id: str) -> pb.ApiKey | None:
        """Return a key; None when there is none, or it was revoked."""
        record = self._by_id.get(KEY + key_id)
        return record.api_key if record is not None and record.HasField("api_key") else None

    def user(self, name: str) -> pb.ScramUser | None:
        """Return the user of a name; None when there is none."""
        user_id = self._user_ids.get(name)
        return None if user_id is None else self._by_id[user_id].user

    def scram_secret(self) -> bytes:
        """Return what the salts of users come of that there are not; empty before there was any user."""
        record = self._by_id.get(MADE_UP)
        return b"" if record is None else record.scram_secret

    def standing_users(self) -> Iterator[pb.ScramUser]:
        """Yield the users that there are."""
        yield from (self._by_id[user_id].user for user_id in self._user_ids.values())

    def standing_keys(self) -> Iterator[pb.ApiKey]:
        """Yield the keys that were not revoked, expired ones included."""
        yield from (record.api_key for record in self._by_id.values() if record.HasField("api_key"))

    def vouches_for(self, identity: str, principal: str) -> bool:
        """Whether the record with this id still says that somebody is this principal."""
        record = self._by_id.get(identity)
        if record is None:
            return False
        return principal == (record.user.name if record.HasField("user") else record.api_key.principal)

    def get(self, record_id: str) -> pb.SecurityRecord | None:
        """Return a record, also one that says that something was deleted; None when there never was one."""
        return self._by_id.get(record_id)

    def stands(self, record_id: str) -> bool:
        """Whether there is a record, and it says that something is there."""
        record = self._by_id.get(record_id)
        return record is not None and not record.deleted

    def next_of(self, record_id: str) -> pb.SecurityRecord:
        """Return the empty next revision of a record, to be filled by whoever owns `__meta`."""
        standing = self._by_id.get(record_id)
        return pb.SecurityRecord(id=record_id, revision=1 if standing is None else standing.revision + 1)

    def count(self, prefix: str) -> int:
        """Return how many records of a kind stand."""
        return sum(1 for record in self._by_id.values() if not record.deleted and record.id.startswith(prefix))

    def refuse_too_many(self, prefix: str) -> None:
        """Refuse one more record of a kind where there are as many as there may be.

        Raises:
            ProtocolError: INVALID_REQUEST.
        """
        most = {KEY: KEYS_MAX, RULE: RULES_MAX, USER: USERS_MAX, QUOTA: QUOTAS_MAX}[prefix]
        if self.count(prefix) >= most:
            raise ProtocolError(pb.INVALID_REQUEST, f"there are {most} of these already; remove what nobody uses")

    def page(self, prefix: str, after: str, entries: int = PAGE_ENTRIES) -> tuple[list[pb.SecurityRecord], bool]:
        """Return the records of a kind whose ids come behind `after`, and whether there are more of them."""
        ids = sorted(
            record.id
            for record in self._by_id.values()
            if not record.deleted and record.id.startswith(prefix) and record.id > after
        )
        return [self._by_id[record_id] for record_id in ids[:entries]], len(ids) > entries

    def records(self) -> Iterator[pb.SecurityRecord]:
        """Yield what stands: a snapshot."""
        yield from (record for record in self._by_id.values() if not record.deleted)


def wrapped_security(record: pb.SecurityRecord) -> pb.MetaRecord:
    """Return a record as it stands in `__meta`."""
    return pb.MetaRecord(security=record)
