"""SECURITY_CHANGE, SECURITY_LIST and ACCESS_TEST: identities, rules, quotas, and the permissions that result."""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.security.quota_rules import canonical
from tidelog_broker.core.security.registry import KEY, QUOTA, RULE, USER, SecurityRegistry
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.metadata.security_changes import without_secrets
from tidelog_broker.metadata.user_changes import without_verifier
from tidelog_broker.server.access import count_refusal, evaluate_access
from tidelog_broker.server.feature_check import check_features, new_security_record
from tidelog_broker.server.forwarding import at_owner
from tidelog_broker.server.propagation import wait_until_applied
from tidelog_broker.wire.caller_forwarding import with_caller
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_USAGES_MAX: Final = 1_000
"""Maximum number of callers that a node reports: those that were throttled for longest. An answer contains at most
twice as many, of all nodes together."""
_USAGE_TIMEOUT_S: Final = 1.5
"""Maximum time of waiting for the usage at all other nodes; later answers are omitted."""
_PREFIXES: Final = {
    pb.SecurityList.KEYS: KEY,
    pb.SecurityList.RULES: RULE,
    pb.SecurityList.USERS: USER,
    pb.SecurityList.QUOTAS: QUOTA,
}


async def change(broker: Broker, request: Request) -> None:
    """Handle SECURITY_CHANGE.

    Raises:
        ProtocolError: INVALID_REQUEST, or the error of the write.
    """
    await check_features(broker, new_security_record(request.envelope.security_change))

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        return pb.Envelope(security_change_reply=await broker.security_changes.change(envelope.security_change))

    reply = await at_owner(broker, META_KEY, request, local)
    message, created = request.envelope.security_change, reply.security_change_reply
    changed_ids = [KEY + created.key.key_id] * created.HasField("key") + [
        RULE + created.rule.rule_id
    ] * created.HasField("rule")
    changed_ids += [USER + created.user.user_id] * created.HasField("user")
    ended = [prefix + name for prefix, name in ((KEY, message.revoke_key), (RULE, message.revoke_rule)) if name]
    registry = broker.security.registry
    await wait_until_applied(
        lambda: (
            all(registry.exists(one) for one in changed_ids)
            and not any(registry.exists(one) for one in ended)
            and not (message.delete_user and registry.user(message.delete_user))
            and _has_quotas_of(registry, message, created)
        )
    )
    request.reply(reply)


def _has_quotas_of(registry: SecurityRegistry, change: pb.SecurityChange, reply: pb.SecurityChangeReply) -> bool:
    """Return whether this node has applied a change of a quota; True for other changes."""
    if change.WhichOneof("change") == "remove_quota":
        return registry.quotas.of_subject(canonical(change.remove_quota, is_new=False)) is None
    return not reply.HasField("quota") or registry.quotas.of_subject(reply.quota.subject) == reply.quota


async def list_some(broker: Broker, request: Request) -> None:
    """Handle SECURITY_LIST: a page of the existing records, by id and without secrets, or the usage of quotas.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if request.envelope.security_list.what == pb.SecurityList.QUOTA_USAGE:
        request.reply(pb.Envelope(security_list_reply=await _usage(broker, request)))
        return

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        await broker.meta_log.ready(confirmed=True)
        message = envelope.security_list
        prefix = _PREFIXES.get(message.what)
        if prefix is None:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"SECURITY_LIST must name KEYS, RULES, USERS, QUOTAS or QUOTA_USAGE, got kind {message.what}",
            )
        async with broker.bounds.turns.turn(request.connection, request.payer):
            records, more = broker.security.registry.page(prefix, message.after)
            reply = pb.SecurityListReply(
                keys=[without_secrets(record.api_key) for record in records if record.HasField("api_key")],
                rules=[record.rule for record in records if record.HasField("rule")],
                users=[without_verifier(record.user) for record in records if record.HasField("user")],
                quotas=[record.quota for record in records if record.HasField("quota")],
                last=records[-1].id if more else "",
            )
        return pb.Envelope(security_list_reply=reply)

    request.reply(await at_owner(broker, META_KEY, request, local))


def test(broker: Broker, request: Request) -> None:
    """Handle ACCESS_TEST with the rules that this node knows.

    Raises:
        ProtocolError: FORBIDDEN if the caller asks about another principal without `cluster` on the cluster or, with
            `enforce`, lacks the permission itself; INVALID_REQUEST.
    """
    question, session = request.envelope.access_test, request.session
    if question.enforce:
        if question.principal:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"an access test with `enforce` tests the caller; leave `principal` empty, got {question.principal!r}",
            )
        if session is not None:
            try:
                session.check(question.operation, question.resource, question.name)
            except ProtocolError as error:
                count_refusal(broker, "access_test", request, error)
                raise
    request.reply(pb.Envelope(access_test_reply=evaluate_access(request.session, request.envelope.access_test, broker)))


async def _usage(broker: Broker, request: Request) -> pb.SecurityListReply:
    """Return the usage at this node and, for a client, at the other nodes that answer."""
    reply = pb.SecurityListReply(usages=_usage_here(broker))
    if request.connection.peer_id is None:
        for found in await asyncio.gather(
            *(_usage_at(broker, request, peer) for peer in sorted(broker.cluster.linked))
        ):
            reply.usages.extend(found[: 2 * _USAGES_MAX - len(reply.usages)])
    return reply


def _usage_here(broker: Broker) -> list[pb.QuotaUsage]:
    bound = [account for account in broker.accounts if account.is_bound]
    bound.sort(key=lambda account: account.throttled_s, reverse=True)
    return [
        pb.QuotaUsage(
            node_id=broker.node_id,
            caller=account.name,
            connections=len(account.clients),
            in_flight_bytes=account.in_flight_bytes,
            waiting=account.waiting,
            throttled_ms=round(account.throttled_s * 1000),
            produce_debt_ms=account.throttle_ms("publish"),
            consume_debt_ms=account.throttle_ms("fetch"),
        )
        for account in bound[:_USAGES_MAX]
    ]


async def _usage_at(broker: Broker, request: Request, peer: str) -> list[pb.QuotaUsage]:
    envelope = with_caller(request, pb.Envelope(security_list=request.envelope.security_list))
    try:
        frame = await broker.cluster.request(peer, envelope, timeout_s=_USAGE_TIMEOUT_S)
    except ProtocolError:  # The node is unreachable, slow, or of a release without quotas.
        return []
    return list(frame.envelope.security_list_reply.usages)
