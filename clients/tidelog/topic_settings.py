"""Requests that create and alter topics, from settings by name. No I/O.

`tidelog_proto.topic_settings` lists the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.errors import InvalidRequestError, TopicExistsError
from tidelog.model import Topic, TopicSettings
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import ALTERABLE, DESCRIBED, TOPIC_SETTINGS

__all__ = ["TopicSettings", "check_existing", "topic_alter", "topic_create"]


def topic_create(name: str, settings: Mapping[str, object]) -> pb.TopicCreate:
    """Return the request that creates a topic; a setting that is None gets the node's default.

    Raises:
        InvalidRequestError: a setting is unknown or its value is invalid.
    """
    config = pb.TopicConfig()
    _put(config, settings)
    return pb.TopicCreate(name=name, config=config)


def topic_alter(name: str, changes: Mapping[str, object]) -> pb.TopicAlter:
    """Return the request that changes a topic; a setting that is None does not change.

    Raises:
        InvalidRequestError: a setting is unknown or its value is invalid.
    """
    request = pb.TopicAlter(name=name)
    _put(request, changes)
    return request


def check_existing(topic: Topic, settings: Mapping[str, Any]) -> None:
    """Check that an existing topic has the requested settings; settings that are None are not compared.

    Raises:
        TopicExistsError: a setting differs.
    """
    has = {name: getattr(topic, name) for name in DESCRIBED} | {"partitions": topic.partition_count}
    different = [
        f"{name} is {has[name]}, not {value}" for name, value in settings.items() if value not in {None, has[name]}
    ]
    if different:
        wanted = settings.get("partitions")
        remedy = "change them with alter_topic, or leave them out"
        if wanted is not None and wanted < topic.partition_count:
            remedy = f"partitions can only be added, so leave the number out or give {topic.partition_count}"
            remedy += "; change other settings with alter_topic, or leave them out" if len(different) > 1 else ""
        raise TopicExistsError(f"topic {topic.name!r} exists with other settings ({'; '.join(different)}): {remedy}")


def _put(message: pb.TopicConfig | pb.TopicAlter, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name not in ALTERABLE:
            raise InvalidRequestError(
                f"topic setting {name!r} does not exist or cannot be set; these can: {', '.join(ALTERABLE)}"
            )
        if value is None:
            continue
        stored = _encoded(name, value)
        try:
            setattr(message, name, stored)
        except ValueError as error:
            raise InvalidRequestError(f"{name} must be at most {TOPIC_SETTINGS[name].maximum}, got {value}") from error


def _encoded(name: str, value: object) -> int | bool | str:
    try:
        return TOPIC_SETTINGS[name].encode(value)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
