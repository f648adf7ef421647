"""The W3C trace context that requests to nodes carry: where a gateway exports traces, that of the request it answers.

A node makes a span of a request that carries one. Without a source nothing is looked at and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import TRACE_CONTEXTS_MAX

_source: Callable[[], str] | None = None


def use(source: Callable[[], str] | None) -> None:
    """Ask `source` for the `traceparent` of whatever runs in the current context; None: ask nobody any more."""
    global _source  # noqa: PLW0603 - one for the process, as contexts are
    _source = source


def current() -> str:
    """Return the `traceparent` of what runs; empty where there is none, or nobody exports traces."""
    return "" if _source is None else _source()


def carry(envelope: pb.Envelope, contexts: Iterable[str]) -> None:
    """Let a request carry contexts; the first is the parent of the node's span, the others are links."""
    found = list(dict.fromkeys(context for context in contexts if context))[:TRACE_CONTEXTS_MAX]
    if found:
        envelope.trace_contexts.extend(found)


def carry_current(envelope: pb.Envelope) -> None:
    """Let a request carry the context of what runs."""
    if _source is not None:
        carry(envelope, (_source(),))
