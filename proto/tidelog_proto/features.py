"""What a node says in its greeting that it can do, where a client must not assume it: names of HELLO's `features`."""

from __future__ import annotations

from typing import Final

ON_BEHALF: Final = "on_behalf"
"""It looks at `Envelope.on_behalf`. One that does not would take the request for that of the connection's principal."""

KEYED_REQUESTS: Final = "keyed_requests"
"""It recognises requests with an idempotency key. One that does not refuses their batches."""
