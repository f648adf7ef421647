"""Names of optional capabilities of nodes and clients, which they list in `features` of HELLO and its answer."""

from __future__ import annotations

from typing import Final

ON_BEHALF: Final = "on_behalf"
"""The node evaluates `Envelope.on_behalf`. Older nodes would execute the request as the connection's principal."""

KEYED_REQUESTS: Final = "keyed_requests"
"""The node supports requests with an idempotency key. Older nodes refuse the batches of such requests."""

NEWEST_RECORD: Final = "newest_record"
"""The node evaluates `FetchEntry.newest`. Older nodes would send the oldest matching records."""

TYPED_TOPICS: Final = "typed_topics"
"""The node supports typed topics; the client, which lists it in HELLO, reads typed batches. A node sends typed batches
only to such clients. Older nodes refuse typed batches and the creation of typed topics."""
