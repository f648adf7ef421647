"""Write `docs/configuration.md` from the settings themselves: `python -m tests.configuration_table`."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tidelog_broker.base.config import NodeSettings
from tidelog_cli.topics.setting_options import option_names
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.topic_settings import TOPIC_SETTINGS, TopicSetting

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

Every setting has a default except the node's `data`. A process reads, the later winning over the earlier:

1. the table `[node]` or `[gateway]` of a TOML file, named with `--config FILE`; one file serves every process;
2. environment variables, `TIDELOG_NODE_` or `TIDELOG_GATEWAY_` and the key in capitals, lists with commas;
3. options of the command line, where there is one for the key.

In a file `segment.write` is the same key as `segment_write`. A key that does not exist is an error with a suggestion.
`KiB` and `MiB` below are 1,024 and 1,048,576 bytes; files and variables take plain numbers.

```toml
[node]
data = "/var/lib/tidelog"
host = "0.0.0.0"
advertise_host = "log1.example.org"

[gateway]
bootstrap = ["log1.example.org:7400"]
allowed_origins = ["https://app.example.org"]
```

Commands that connect to a node take `--bootstrap` or the variable `TIDELOG_BOOTSTRAP`; without them, they use the
current [context](contexts.md), or `127.0.0.1:7400`.
"""


def render() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *_table("node", NodeSettings), *_table("gateway", GatewaySettings), *_topics()])


TOPICS = """\
## Topics

A topic has settings of its own. `Client.create_topic`, `Client.alter_topic` and the HTTP API take them by these names,
`tidelog topic create` and `tidelog topic alter` as options. `retention_bytes` deletes whole segments, and a partition
keeps up to twice as much while one of its replicas lags
([ADR 0023](adr/0023-flow-control-between-an-owner-and-its-replicas.md)).
"""


def _topics() -> list[str]:
    rows = [
        f"| `{name}` | `{option_names(setting)[0]}` | {_topic_values(setting)} | {_topic_default(setting)} "
        f"| {setting.since} | {setting.help} |"
        for name, setting in TOPIC_SETTINGS.items()
        if setting.alterable
    ]
    head = "| setting | option | values | default | since | meaning |"
    return [TOPICS, head, "| --- | --- | --- | --- | --- | --- |", *rows, ""]


def _topic_values(setting: TopicSetting) -> str:
    if setting.kind is str:
        others = [setting.others] if setting.others else []
        return " \\| ".join([*(f"`{choice}`" for choice in setting.choices), *others])
    if setting.kind is bool:
        return "true, false"
    return f"{setting.minimum:,} to {setting.maximum:,} {setting.unit}".strip()


def _topic_default(setting: TopicSetting) -> str:
    if setting.default_text:
        return setting.default_text
    value = setting.decode(setting.default)
    return f"`{str(value).lower() if setting.kind is bool else value}`"


def _table(section: str, settings: type[BaseModel]) -> list[str]:
    rows = [
        f"| `{key}` | {_type_text(field)} | {_default_text(key, field)} | {_description(field)} |"
        for key, field in settings.model_fields.items()
    ]
    return [f"## `[{section}]`", "", "| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]


def _type_text(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(field.annotation))
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    name = {str: "text", int: "number", float: "number", bool: "true or false", Path: "path"}
    if str(field.annotation).startswith("list"):
        return "list"
    return name[kinds[0]] if kinds[0] in name else str(kinds[0])


def _default_text(key: str, field: FieldInfo) -> str:
    default: Any = field.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return "(needed)"
    if default is None:
        return "none"
    if isinstance(default, int) and "bytes" in key:
        for unit, unit_bytes in (("MiB", 1 << 20), ("KiB", 1 << 10)):
            if default and default % unit_bytes == 0:
                return f"{default // unit_bytes:,} {unit}"
    if isinstance(default, list):
        return f"`{', '.join(map(str, default))}`" if default else "empty"
    return f"`{default}`"


def _description(field: FieldInfo) -> str:
    assert field.description, "every setting says what it means"
    return field.description.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render())
