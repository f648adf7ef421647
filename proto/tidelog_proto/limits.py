"""Every limit of the protocol in one place, with the arithmetic that ties them together.

Units are in the names. A length that arrives is compared with one of these *before* memory is taken for it.
The relations at the end are asserted at import: a change that breaks one of them does not start.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PROTOCOL_VERSION: Final = 1

# A record batch ----------------------------------------------------------------------------------------

HEADER_BYTES: Final = 128
"""The fixed header in front of every record batch's body."""

BATCH_ALIGNMENT_BYTES: Final = 64
"""Batches start at multiples of this in a segment, so that Arrow's buffers are aligned when mapped."""

BATCH_BYTES_MAX: Final = 16 * MIB
"""Header and body, as sent and stored."""

BATCH_UNCOMPRESSED_BYTES_MAX: Final = 64 * MIB
"""The body after decompression: the bound on a decompression bomb."""

BATCH_RECORDS_MAX: Final = 1_000_000

TAG_BYTES_MAX: Final = 4 * KIB

DERIVED_EXTRA_BYTES: Final = 4 * KIB
"""How far a derived batch may go past both limits of bytes: a largest record fits with the columns that it gains."""

# Frames ------------------------------------------------------------------------------------------------

FRAME_PREFIX_BYTES: Final = 8
"""u32 frame length, u32 envelope length. The frame length counts everything after itself."""

ENVELOPE_BYTES_MAX: Final = 1 * MIB
FRAME_BYTES_MAX: Final = 64 * MIB
FRAME_BYTES_MAX_BEFORE_HELLO: Final = 64 * KIB

# Requests ----------------------------------------------------------------------------------------------

BATCHES_PER_PUBLISH_MAX: Final = 1024
ENTRIES_PER_REQUEST_MAX: Final = 4096
FETCH_BYTES_MAX: Final = 32 * MIB
FETCH_WAIT_MS_MAX: Final = 60_000
PUBLISH_TIMEOUT_MS_DEFAULT: Final = 30_000
NOTE_BYTES_MAX: Final = 4 * KIB
GROUP_NAME_BYTES_MAX: Final = 255
CLIENT_ID_BYTES_MAX: Final = 255
PRINCIPAL_CHARS_MAX: Final = 255
QUOTA_BYTES_MIN: Final = 4 * KIB
UNLIMITED: Final = 2**64 - 1
"""In a quota: no bound."""
"""Of the name of a principal, a user or a role."""
TOKEN_BYTES_MAX: Final = 16 * KIB
"""Of a JWT: longer ones are refused unread."""
INSTANCE_ID_BYTES_MAX: Final = 255

GROUP_SESSION_MS_DEFAULT: Final = 10_000
"""So long a member of a group may be silent, unless it says otherwise."""
GROUP_SESSION_MS_MIN: Final = 500
GROUP_SESSION_MS_MAX: Final = 1_800_000
LOAD_BYTES_S_MAX: Final = 1e12
"""What a member of a group may say that it reads of a partition, in bytes per second."""

TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; the first is that of 1970."""

JSON_DEPTH_MAX: Final = 128
"""Levels of objects and arrays in a JSON value; every parser and engine in use takes more."""
JSON_NUMBER_CHARS_MAX: Final = 1000
"""Characters of a number in a JSON value, for the same reason."""

PAGE_BYTES: Final = 256 * KIB
"""About what one page of a list takes: the answer ends with the entry that goes past it, and says where to go on."""

# Between nodes ----------------------------------------------------------------------------------------

CLUSTER_ID_BYTES: Final = 16
NODE_ID_BYTES_MAX: Final = 128
PEER_NONCE_BYTES: Final = 32

ENTRIES_PER_PEER_MESSAGE_MAX: Final = 4096
"""Entries of one one-way message between nodes."""

PEER_GROUP_BYTES: Final = 256 * KIB
"""Batches of different partitions share a message up to here: a receiver that keeps one of them keeps them all."""

FORWARDED_IN_FLIGHT_MAX: Final = 4096
"""Requests that one node forwards to another and that are unanswered."""

# Topics ------------------------------------------------------------------------------------------------

TOPIC_NAME_CHARS_MAX: Final = 200
TOPIC_ID_BYTES: Final = 16
PARTITIONS_MAX: Final = 16_384
"""Of one topic. A request names fewer (`ENTRIES_PER_REQUEST_MAX`): a client sends several requests for all of them."""
REPLICATION_FACTOR_MAX: Final = 9
FLUSH_INTERVAL_MS_DEFAULT: Final = 100
FLUSH_INTERVAL_MS_MAX: Final = 60_000
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 4096 * MIB
SEGMENT_BYTES_DEFAULT: Final = 256 * MIB
RETENTION_MS_MAX: Final = 36_525 * 86_400_000
"""A hundred years: the longest time that a topic may be set to keep something."""
TOMBSTONE_RETENTION_MS_DEFAULT: Final = 86_400_000
DIRTY_PERCENT_DEFAULT: Final = 50
DEDUPLICATE_RECORDS_MAX: Final = 1_000_000
"""In how many of a partition's newest records contents are looked for, whatever a topic is set to."""
DEDUPLICATE_S_MAX: Final = RETENTION_MS_MAX // 1000
DEDUPLICATED_BATCH_RECORDS_MAX: Final = 65_536
"""Of a batch for a topic that drops duplicates: a longer one would take the node's time in one piece."""

# Producers ---------------------------------------------------------------------------------------------

SEQUENCE_WINDOW_BATCHES: Final = 8
"""How many of a producer's newest batches a partition remembers; retries inside it get their first offset."""

PRODUCER_IN_FLIGHT_BATCHES_MAX: Final = 5
"""How many batches of one partition a producer keeps unacknowledged."""

EPOCHS_PER_INSTANCE: Final = 1024
"""How many producer epochs an instance of a named producer has, beginning with a multiple of this."""

KEYED_ID_MIN: Final = 2**63
"""Producer ids from here on stand for requests with an idempotency key: the key decides the id, and one request writes
one batch to a partition."""

TRACE_CONTEXTS_MAX: Final = 32
"""Of one request to a node; a batch may have the records of more."""

PRODUCER_EPOCH_MAX: Final = 2**32 - 1
PRODUCER_NAME_BYTES_MAX: Final = 255

assert BATCH_BYTES_MAX + DERIVED_EXTRA_BYTES + ENVELOPE_BYTES_MAX + FRAME_PREFIX_BYTES <= FRAME_BYTES_MAX, (
    "a largest batch must fit a frame"
)
assert FETCH_BYTES_MAX + BATCH_BYTES_MAX + DERIVED_EXTRA_BYTES + ENVELOPE_BYTES_MAX <= FRAME_BYTES_MAX, (
    "a largest fetch must fit a frame"
)
assert 2 * PAGE_BYTES + NOTE_BYTES_MAX <= ENVELOPE_BYTES_MAX, "a page and what stands beside it must fit an envelope"
assert BATCH_BYTES_MAX <= BATCH_UNCOMPRESSED_BYTES_MAX, "a largest uncompressed batch must be legal"
assert HEADER_BYTES % BATCH_ALIGNMENT_BYTES == 0, "the body must stay aligned behind the header"
assert PRODUCER_IN_FLIGHT_BATCHES_MAX <= SEQUENCE_WINDOW_BATCHES, "every batch in flight must be recognised on retry"
assert FRAME_BYTES_MAX < 2**32, "frame lengths are u32"
assert SEGMENT_BYTES_MIN >= 2 * HEADER_BYTES, "a segment holds its own header and a batch"
