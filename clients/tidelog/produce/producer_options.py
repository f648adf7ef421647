"""The options of a producer and their checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypedDict

from tidelog.errors import InvalidRequestError
from tidelog.model import Acks, Compression
from tidelog.produce.partition_queue import BATCH_BYTES_TARGET
from tidelog.produce.partitioners import Partitioner, chooser_of
from tidelog.produce.serializers import Serializer, serializer_of
from tidelog.produce.work import Work, check_name
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec

BUFFER_BYTES_DEFAULT: Final = 64 * 1024 * 1024
DELIVERY_TIMEOUT_S_DEFAULT: Final = 120.0

ACKS: Final[dict[str, pb.Acks]] = {"quorum": pb.QUORUM, "1": pb.ONE, "all": pb.ALL}
CODECS: Final = {
    None: Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class ProducerArguments(TypedDict, total=False):
    """The arguments of `Client.producer` except the topic; documented there. The defaults are in `ProducerOptions`."""

    name: str | Work | None
    acks: Acks
    compression: Compression | None
    buffer_bytes: int
    batch_bytes: int
    delivery_timeout_s: float
    request_timeout_s: float | None
    partitioner: Partitioner | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The checked arguments of `Client.producer`.

    Raises:
        InvalidRequestError: an option has an invalid value.
    """

    name: str | Work | None = None
    acks: Acks = "quorum"
    compression: Compression | None = None
    buffer_bytes: int = BUFFER_BYTES_DEFAULT
    batch_bytes: int = BATCH_BYTES_TARGET
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S_DEFAULT
    request_timeout_s: float | None = None
    partitioner: Partitioner | None = None
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None

    def __post_init__(self) -> None:
        if self.acks not in ACKS:
            raise InvalidRequestError(f"acks must be one of {', '.join(map(repr, ACKS))}, got {self.acks!r}")
        if self.compression not in CODECS:
            raise InvalidRequestError(
                f"compression must be one of {', '.join(map(repr, CODECS))}, got {self.compression!r}"
            )
        # `not > 0` also refuses NaN.
        if not (self.buffer_bytes > 0 and self.batch_bytes > 0 and self.delivery_timeout_s > 0):
            raise InvalidRequestError(
                f"buffer_bytes, batch_bytes and delivery_timeout_s must be > 0, got {self.buffer_bytes!r}, "
                f"{self.batch_bytes!r} and {self.delivery_timeout_s!r}"
            )
        if self.request_timeout_s is not None and not (0 < self.request_timeout_s < math.inf):
            raise InvalidRequestError(f"request_timeout_s must be > 0 and finite, got {self.request_timeout_s!r}")
        if self.name is not None:
            check_name(self.name)
        chooser_of(self.partitioner)
        serializer_of(self.key_serializer, "key")
        serializer_of(self.value_serializer, "value")
