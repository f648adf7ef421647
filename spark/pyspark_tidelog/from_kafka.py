"""The options of Spark's Kafka source and sink, and what stands for each here: a job that moves over is told.

One table: errors of unknown options speak from it, and docs/spark-options.md shows it.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

Side = Literal["reading", "writing"]

THE_SAME: Final = "the same"
"""What stands for an option that has its name here, too."""
_PREFIX: Final = "kafka."
_NONE: Final = "none: "
_BEFORE: Final[dict[Side | None, str]] = {"writing": "a sink's "}


class Moved(NamedTuple):
    """Options of Kafka's that one thing stands for here.

    Attributes:
        names: theirs; `*` stands for any part.
        here: what stands for them, in Markdown: an option, or "none: " and why.
        side: where Spark has them; None: in both.
        before: what docs/spark-options.md says before the names.
    """

    names: tuple[str, ...]
    here: str
    side: Side | None = None
    before: str = ""

    def shown(self) -> str:
        """Return it as a row of a table in Markdown."""
        names = ", ".join(f"`{name}`" for name in self.names)
        return f"| {self.before or _BEFORE.get(self.side, '')}{names} | {self.here} |"

    def is_named(self, lower: str) -> bool:
        """Whether an option in lower case is one of these; a name of the client's own needs no prefix."""
        given = {lower, _PREFIX + lower}
        return any(fnmatchcase(one, name.lower()) for name in self.names for one in given)


OTHERS: Final = Moved(("kafka.*",), "none: no client of Kafka's is at work here", before="any other ")

MOVED: Final = (
    Moved(("kafka.bootstrap.servers",), "`bootstrap`"),
    Moved(
        ("kafka.security.protocol",),
        "`tls`; and who asks, by `apiKeyFile`, `tokenFile`, `user` with `passwordFile`, or `certFile`",
    ),
    Moved(
        ("kafka.ssl.*password", "keyPassword", "keyFilePassword", "keystorePassword", "truststorePassword"),
        "none: keys and certificates are files in PEM, without passwords",
    ),
    Moved(("kafka.ssl.truststore.*",), "`caFile`, in PEM"),
    Moved(("kafka.ssl.keystore.*", "kafka.ssl.key.*"), "`certFile` and `keyFile`, in PEM"),
    Moved(("kafka.ssl.*",), "`tls`, `caFile`, `certFile`, `keyFile`, `crlFile`; the rest is not to be set"),
    Moved(("kafka.sasl.*",), "`apiKeyFile`, `tokenFile`, or `user` with `passwordFile`"),
    Moved(("subscribe", "subscribePattern", "assign"), THE_SAME, "reading"),
    Moved(
        (
            "startingOffsets",
            "endingOffsets",
            "startingTimestamp",
            "endingTimestamp",
            "startingOffsetsByTimestamp",
            "endingOffsetsByTimestamp",
            "startingOffsetsByTimestampStrategy",
        ),
        THE_SAME,
        "reading",
    ),
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
        "none: a query's positions are in its checkpoint alone, and no group is made",
        "reading",
    ),
    Moved(
        ("kafka.fetch.*", "kafka.max.partition.fetch.bytes", "kafka.max.poll.*", "kafkaConsumer.*", "fetchOffset.*"),
        "none: answers are bounded, and a Python worker keeps the client of its last task",
        "reading",
    ),
    Moved(("kafka.client.rack",), "`readFrom=nearest` with `zone`", "reading"),
    Moved(("kafka.isolation.level",), "none: only committed records are read", "reading"),
    Moved(
        ("kafka.*.deserializer", "kafka.*.serializer"),
        "none: keys and values are bytes, which the query casts",
    ),
    Moved(("topic",), THE_SAME, "writing"),
    Moved(("includeHeaders",), "none: a column `headers` is written where there is one", "writing"),
    Moved(("kafka.acks",), "`acks`", "writing"),
    Moved(("kafka.compression.*",), "`compression`", "writing"),
    Moved(
        ("kafka.enable.idempotence", "kafka.transactional.id", "kafka.retries", "kafka.max.in.flight.*"),
        "none: each row is stored once",
        "writing",
    ),
    Moved(
        ("kafka.linger.ms", "kafka.batch.size", "kafka.buffer.memory", "kafka.max.request.size"),
        "none: a task sends what comes, and holds a bounded part of it",
        "writing",
    ),
    OTHERS,
)
"""The first that has a name counts."""


def hint_of(name: str, side: Side) -> str:
    """Return what to say of an option that is not known: a sentence with a space before it, or nothing.

    Args:
        name: as it was given, in any case.
        side: what it was given for.
    """
    lower = name.lower()
    found = [moved for moved in MOVED if moved.is_named(lower)]
    if not lower.startswith(_PREFIX):
        found = [moved for moved in found if moved is not OTHERS]
    fitting = [moved for moved in found if moved.side in {None, side} and moved is not OTHERS]
    if not found or (fitting and fitting[0].here == THE_SAME):
        return ""
    moved = (fitting or found)[0]
    if moved.here.startswith(_NONE):
        return f" There is no such option here: {_plain(moved.here.removeprefix(_NONE))}."
    if not fitting:
        return f" It is for {moved.side} alone{'' if moved.here == THE_SAME else ': ' + _plain(moved.here)}."
    if re.fullmatch(r"`\w+`", moved.here):
        return f" Did you mean {_plain(moved.here)}?"
    return f" Use {_plain(moved.here)}."


def _plain(text: str) -> str:
    return text.replace("`", "'")
