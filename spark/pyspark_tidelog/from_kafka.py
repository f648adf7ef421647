"""Options of Spark's Kafka source and sink, and their equivalents here, for jobs that move from Kafka.

Errors of unknown options and the table in docs/spark-options.md use this table.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

Side = Literal["reading", "writing"]

POSITION_NAMES: Final = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
"""The options of positions, which Spark's Kafka source has, too."""
THE_SAME: Final = "the same"
"""Marks an option that has the same name and meaning here."""
_PREFIX: Final = "kafka."
_NONE: Final = "none: "
_BEFORE: Final[dict[Side | None, str]] = {"writing": "a sink's "}


class Moved(NamedTuple):
    """Options of Kafka's source or sink that have the same equivalent here.

    Attributes:
        names: the options; `*` matches any part.
        here: the equivalent in Markdown: an option, or "none: " and the reason.
        side: reading or writing; None for both.
        before: text before the names in docs/spark-options.md.
    """

    names: tuple[str, ...]
    here: str
    side: Side | None = None
    before: str = ""

    def shown(self) -> str:
        """Return a row of a Markdown table."""
        names = ", ".join(f"`{name}`" for name in self.names)
        return f"| {self.before or _BEFORE.get(self.side, '')}{names} | {self.here} |"

    def is_named(self, lower: str) -> bool:
        """Return whether an option in lower case is one of these; the prefix `kafka.` is optional."""
        spellings = {lower, _PREFIX + lower}
        return any(fnmatchcase(one, name.lower()) for name in self.names for one in spellings)


OTHERS: Final = Moved(("kafka.*",), "none: no Kafka client is used", before="any other ")

MOVED: Final = (
    Moved(("kafka.bootstrap.servers",), "`bootstrap`"),
    Moved(
        ("kafka.security.protocol",),
        "`tls`; and credentials by `apiKeyFile`, `tokenFile`, `user` with `passwordFile`, or `certFile`",
    ),
    Moved(
        ("kafka.ssl.*password", "keyPassword", "keyFilePassword", "keystorePassword", "truststorePassword"),
        "none: keys and certificates are files in PEM, without passwords",
    ),
    Moved(("kafka.ssl.truststore.*",), "`caFile`, in PEM"),
    Moved(("kafka.ssl.keystore.*", "kafka.ssl.key.*"), "`certFile` and `keyFile`, in PEM"),
    Moved(("kafka.ssl.*",), "`tls`, `caFile`, `certFile`, `keyFile`, `crlFile`; the rest cannot be set"),
    Moved(("kafka.sasl.*",), "`apiKeyFile`, `tokenFile`, or `user` with `passwordFile`"),
    Moved(("subscribe", "subscribePattern", "assign"), THE_SAME, "reading"),
    Moved(POSITION_NAMES, THE_SAME, "reading"),
    Moved(
        (
            "maxOffsetsPerTrigger",
            "minOffsetsPerTrigger",
            "maxTriggerDelay",
            "minPartitions",
            "maxRecordsPerPartition",
            "failOnDataLoss",
            "includeHeaders",
        ),
        THE_SAME,
        "reading",
    ),
    Moved(("kafka.auto.offset.reset",), "`startingOffsets`", "reading"),
    Moved(
        ("kafka.group.id", "groupIdPrefix", "kafka.group.*", "kafka.enable.auto.commit", "kafka.auto.commit.*"),
        "none: a query's positions are only in its checkpoint, and no group is created",
        "reading",
    ),
    Moved(
        ("kafka.fetch.*", "kafka.max.partition.fetch.bytes", "kafka.max.poll.*", "kafkaConsumer.*", "fetchOffset.*"),
        "none: replies are bounded, and a Python worker reuses the client of its last task",
        "reading",
    ),
    Moved(("kafka.client.rack",), "`readFrom=nearest` with `zone`", "reading"),
    Moved(("kafka.isolation.level",), "none: only committed records are read", "reading"),
    Moved(
        ("kafka.*.deserializer", "kafka.*.serializer"),
        "none: keys and values are bytes; cast them in the query",
    ),
    Moved(("topic",), THE_SAME, "writing"),
    Moved(("includeHeaders",), "none: a column `headers` is written if the rows have it", "writing"),
    Moved(("kafka.acks",), "`acks`", "writing"),
    Moved(("kafka.compression.*",), "`compression`", "writing"),
    Moved(
        ("kafka.enable.idempotence", "kafka.transactional.id", "kafka.retries", "kafka.max.in.flight.*"),
        "none: each row is stored once",
        "writing",
    ),
    Moved(
        ("kafka.linger.ms", "kafka.batch.size", "kafka.buffer.memory", "kafka.max.request.size"),
        "none: a task sends rows as they arrive, with a bounded buffer",
        "writing",
    ),
    OTHERS,
)
"""All equivalents; of several that match an option, the first for the same side (reading or writing) is used."""


def hint_of(name: str, side: Side) -> str:
    """Return a hint for an unknown option: a sentence with a leading space, or "".

    Args:
        name: the option as given, in any case.
        side: reading or writing.
    """
    lower = name.lower()
    matches = [moved for moved in MOVED if moved.is_named(lower)]
    if not lower.startswith(_PREFIX):
        matches = [moved for moved in matches if moved is not OTHERS]
    fitting = [moved for moved in matches if moved.side in {None, side} and moved is not OTHERS]
    if not matches or (fitting and fitting[0].here == THE_SAME):
        return ""
    moved = (fitting or matches)[0]
    if moved.here.startswith(_NONE):
        return f" It has no equivalent here: {_plain(moved.here.removeprefix(_NONE))}."
    if not fitting:
        return f" It is only for {moved.side}{'' if moved.here == THE_SAME else ': ' + _plain(moved.here)}."
    if re.fullmatch(r"`\w+`", moved.here):
        return f" Did you mean {_plain(moved.here)}?"
    return f" Use {_plain(moved.here)}."


def _plain(text: str) -> str:
    return text.replace("`", "'")
