"""Refusals that name the permission that the requested operation needs.

A client looks up a topic before it reads or writes records. For a principal without any permission, a node already
refuses this lookup, for lack of `describe`, although the principal needs `consume` or `produce`, which include
`describe`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog.cluster.routing import Router
from tidelog.errors import ForbiddenError
from tidelog_proto import broker_pb2 as pb


async def check_permission(router: Router, operation: pb.Operation, resource: pb.Resource, name: str) -> None:
    """Ask a node whether the client's principal may perform an operation; the node audits a refusal.

    Raises:
        ForbiddenError: the operation is not allowed.
        TidelogError: no node answers.
    """
    request = pb.AccessTest(operation=operation, resource=resource, name=name, enforce=True)
    frame = await router.call_any(lambda: pb.Envelope(access_test=request), repeatable=True)
    reply = frame.envelope.access_test_reply
    if not reply.allowed:  # A node of an earlier release ignores `enforce` and reports the refusal in its reply.
        raise ForbiddenError(reply.because)


@asynccontextmanager
async def requiring(
    router: Router, operation: pb.Operation, name: str, resource: pb.Resource = pb.RES_TOPIC
) -> AsyncIterator[None]:
    """Replace a ForbiddenError of the block by the refusal of `operation`, if the principal may not perform that.

    Raises:
        ForbiddenError: the principal may not perform `operation`; otherwise the block's own ForbiddenError.
        TidelogError: as the block, or no node answers the question about the permission.
    """
    try:
        yield
    except ForbiddenError:
        await check_permission(router, operation, resource, name)
        raise
