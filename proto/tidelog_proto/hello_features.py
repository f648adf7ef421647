"""Names of optional capabilities of a node, which it lists in `features` of its answer to HELLO."""

from __future__ import annotations

from typing import Final

ON_BEHALF: Final = "on_behalf"
"""The node evaluates `Envelope.on_behalf`. Older nodes would execute the request as the connection's principal."""

KEYED_REQUESTS: Final = "keyed_requests"
"""The node supports requests with an idempotency key. Older nodes refuse the batches of such requests."""

NEWEST_RECORD: Final = "newest_record"
"""The node evaluates `FetchEntry.newest`. Older nodes would send the oldest matching records."""
