"""Limits of the protocol, with units in their names; the relations between them are asserted at import.

Receivers compare each length with its limit before they allocate memory for it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PROTOCOL_VERSION: Final = 1

# A record batch ----------------------------------------------------------------------------------------

HEADER_BYTES: Final = 128
"""Size of the fixed header of a record batch; the body follows it."""

BATCH_ALIGNMENT_BYTES: Final = 64
"""Alignment of batches in a segment, so that Arrow buffers are aligned when they are mapped."""

BATCH_BYTES_MAX: Final = 16 * MIB
"""Maximum size of a batch, header and body, as sent and as stored."""

BATCH_UNCOMPRESSED_BYTES_MAX: Final = 64 * MIB
"""Maximum size of a body after decompression; limits decompression bombs."""

BATCH_RECORDS_MAX: Final = 1_000_000

TAG_BYTES_MAX: Final = 4 * KIB

DERIVED_EXTRA_BYTES: Final = 4 * KIB
"""Bytes by which a derived batch may exceed the limits of a batch's size and of its uncompressed body, so that a record
of maximum size fits with its added columns."""

# Frames ------------------------------------------------------------------------------------------------

FRAME_PREFIX_BYTES: Final = 8
"""Size of u32 frame length and u32 envelope length. The frame length counts all bytes after itself."""

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
"""Wire value of a quota for "unlimited"."""
TOKEN_BYTES_MAX: Final = 16 * KIB
"""Maximum size of a JWT; a longer one is refused without parsing."""
INSTANCE_ID_BYTES_MAX: Final = 255

GROUP_SESSION_MS_DEFAULT: Final = 10_000
"""Default of a group member's session timeout."""
GROUP_SESSION_MS_MIN: Final = 500
GROUP_SESSION_MS_MAX: Final = 1_800_000
LOAD_BYTES_S_MAX: Final = 1e12
"""Upper bound of the read rate, in bytes per second, that a group member reports for a partition."""

TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; the smallest timestamp is 0."""

JSON_DEPTH_MAX: Final = 128
"""Maximum number of levels of objects and arrays in a JSON value; all JSON parsers and SQL engines in use support
more."""
JSON_NUMBER_CHARS_MAX: Final = 1000
"""Maximum number of characters of a number in a JSON value, for the same reason as JSON_DEPTH_MAX."""

PAGE_BYTES: Final = 256 * KIB
"""Approximate size of one page of a list: a page ends with the entry that exceeds it, and has a token for the next."""

# Between nodes ----------------------------------------------------------------------------------------

CLUSTER_ID_BYTES: Final = 16
NODE_ID_BYTES_MAX: Final = 128
PEER_NONCE_BYTES: Final = 32

ENTRIES_PER_PEER_MESSAGE_MAX: Final = 4096
"""Maximum number of entries in a one-way message between nodes."""

PEER_GROUP_BYTES: Final = 256 * KIB
"""Maximum size of a peer message in which batches of different partitions are combined; a retained batch keeps the
whole message in memory."""

FORWARDED_IN_FLIGHT_MAX: Final = 4096
"""Maximum number of unanswered requests that one node has forwarded to another."""

# Topics ------------------------------------------------------------------------------------------------

TOPIC_NAME_CHARS_MAX: Final = 200
TOPIC_ID_BYTES: Final = 16
PARTITIONS_MAX: Final = 100_000
"""Maximum number of partitions of a topic. A request has at most ENTRIES_PER_REQUEST_MAX entries, so larger topics need
several requests."""
LISTED_PARTITIONS_MAX: Final = 16_384
"""Maximum number of partitions that one request to a gateway lists."""
KNOWN_PARTITIONS_MAX: Final = 131_072
"""Maximum number of partitions, over all topics, that a METADATA request lists as known."""
REPLICATION_FACTOR_MAX: Final = 9
FLUSH_INTERVAL_MS_DEFAULT: Final = 100
FLUSH_INTERVAL_MS_MAX: Final = 60_000
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 4096 * MIB
SEGMENT_BYTES_DEFAULT: Final = 256 * MIB
RETENTION_MS_MAX: Final = 36_525 * 86_400_000
"""100 years: the longest retention of a topic."""
TOMBSTONE_RETENTION_MS_DEFAULT: Final = 86_400_000
DIRTY_PERCENT_DEFAULT: Final = 50
DEDUPLICATE_RECORDS_MAX: Final = 1_000_000
"""Upper bound of the number of newest records of a partition that are searched for duplicate contents."""
DEDUPLICATE_S_MAX: Final = RETENTION_MS_MAX // 1000
DEDUPLICATED_BATCH_RECORDS_MAX: Final = 65_536
"""Maximum number of records of a batch for a deduplicating topic, so that hashing one batch does not block the event
loop."""

# Schemas -----------------------------------------------------------------------------------------------

SCHEMA_BYTES_MAX: Final = 64 * KIB
"""Maximum size of a schema in its canonical encoding."""
SCHEMA_LEAVES_MAX: Final = 256
"""Maximum number of fields of a schema that hold values themselves: neither lists nor structs."""
SCHEMA_DEPTH_MAX: Final = 4
"""Maximum number of fields from a field of the top level to one without children, both included."""
SCHEMA_BUFFERS_MAX: Final = 1000
"""Maximum number of Arrow buffers of a schema's column `value`."""
SCHEMA_ARRAYS_AND_BUFFERS_MAX: Final = 1450
"""Maximum number of Arrow arrays and buffers of a schema's column `value`: an Arrow message describes each of them."""
SCHEMAS_PER_TOPIC_MAX: Final = 256
FIELD_ID_MAX: Final = 2**31 - 1
"""Ids of fields are also those of columns in Parquet files, which are signed."""
FIELD_NAME_BYTES_MAX: Final = 255
FIELD_DOC_BYTES_MAX: Final = 4 * KIB

# Producers ---------------------------------------------------------------------------------------------

SEQUENCE_WINDOW_BATCHES: Final = 8
"""Number of newest batches of a producer that a partition remembers; a retry of one of them is answered with the first
offset of that batch."""

PRODUCER_IN_FLIGHT_BATCHES_MAX: Final = 5
"""Maximum number of unacknowledged batches of a producer in one partition."""

EPOCHS_PER_INSTANCE: Final = 1024
"""Number of producer epochs that are reserved for one instance of a named producer; the first is a multiple of this."""

KEYED_ID_MIN: Final = 2**63
"""Lowest producer id of requests with an idempotency key: the id is derived from the key, and one request writes one
batch to a partition."""

TRACE_CONTEXTS_MAX: Final = 32
"""Maximum number of trace contexts in one request to a node; a batch may contain records of more traces."""

PRODUCER_EPOCH_MAX: Final = 2**32 - 1
PRODUCER_NAME_BYTES_MAX: Final = 255

assert BATCH_BYTES_MAX + DERIVED_EXTRA_BYTES + ENVELOPE_BYTES_MAX + FRAME_PREFIX_BYTES <= FRAME_BYTES_MAX, (
    "a largest batch must fit a frame"
)
assert FETCH_BYTES_MAX + BATCH_BYTES_MAX + DERIVED_EXTRA_BYTES + ENVELOPE_BYTES_MAX <= FRAME_BYTES_MAX, (
    "a largest fetch must fit a frame"
)
assert 2 * PAGE_BYTES + NOTE_BYTES_MAX <= ENVELOPE_BYTES_MAX, "a page and the other fields must fit an envelope"
assert PARTITIONS_MAX <= KNOWN_PARTITIONS_MAX, "a METADATA request must be able to list a largest topic"
assert BATCH_BYTES_MAX <= BATCH_UNCOMPRESSED_BYTES_MAX, "a largest uncompressed batch must be legal"
assert HEADER_BYTES % BATCH_ALIGNMENT_BYTES == 0, "the body must be aligned after the header"
assert PRODUCER_IN_FLIGHT_BATCHES_MAX <= SEQUENCE_WINDOW_BATCHES, "every batch in flight must be recognised on retry"
assert FRAME_BYTES_MAX < 2**32, "frame lengths are u32"
assert SEGMENT_BYTES_MIN >= 2 * HEADER_BYTES, "a segment must fit its own header and that of a batch"
assert SCHEMA_BYTES_MAX < ENVELOPE_BYTES_MAX // 4, "a schema and the other fields must fit an envelope"
assert FIELD_NAME_BYTES_MAX < 2**8, "lengths of names are u8 in the canonical encoding of a schema"
assert FIELD_DOC_BYTES_MAX < 2**16, "lengths of descriptions are u16 in the canonical encoding of a schema"
