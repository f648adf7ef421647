"""Work of the processor for those who show credentials: on a thread of its own, and never too much of it at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from tidelog_broker.base.offload import Offload
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

P = ParamSpec("P")
T = TypeVar("T")

WORK_MAX: Final = 64
"""Callers who wait for it: with the slow hash about half a second's worth."""


class CredentialWork:
    """See the module.

    Args:
        workers: the thread.
    """

    def __init__(self, workers: Offload) -> None:
        self._workers = workers
        self._waiting = 0

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do some work and return what it returns, or raise what it raises.

        Raises:
            ProtocolError: OVERLOADED, too many wait for theirs.
        """
        if self._waiting >= WORK_MAX:
            raise ProtocolError(pb.OVERLOADED, "too many callers are being looked at; send again", retry_after_ms=500)
        self._waiting += 1
        try:
            return await self._workers.call(0, work, *args, **kwargs)
        finally:
            self._waiting -= 1
