"""Write the tables of `docs/permissions.md` that say what requests and Spark need: `python -m tests.access_table`."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog_broker.core.security.permissions import OPERATIONS, operation_name
from tidelog_broker.server.access import RULES
from tidelog_broker.server.audited_requests import AUDITED
from tidelog_proto import broker_pb2 as pb

PAGE = Path(__file__).parents[1] / "docs" / "permissions.md"
HEADS = ("| request | needs | written down |", "| what Spark does | by which requests | needs |")

SPARK: dict[str, tuple[str, ...]] = {
    "plan a load": ("topic_list", "metadata", "list_offsets"),
    "plan the micro-batches of a stream": ("topic_list", "metadata", "list_offsets"),
    "read, in a task": ("metadata", "fetch"),
    "write, in a task": ("metadata", "producer_begin", "publish"),
    "write once more, in a task: it looks at what an earlier try has stored": (
        "metadata",
        "producer_begin",
        "list_offsets",
        "fetch",
        "publish",
    ),
    "end a micro-batch that was tried before, on the driver: it looks at what other tasks have stored": (
        "metadata",
        "producer_begin",
        "list_offsets",
        "fetch",
    ),
}
"""Operation of Spark -> kinds of requests that the connector sends for it, besides the greeting.

`tests/spark/test_each_right.py` does each and compares with what the node was asked.
"""


def spark_needs(what: str) -> frozenset[pb.Operation]:
    """Return the permissions on each topic that allow all of its requests, and not one more."""
    words = " ".join(RULES[kind].words for kind in SPARK[what] if "shows what" not in RULES[kind].words)
    needed = {each for each in OPERATIONS[pb.RES_TOPIC] if f"`{operation_name(each)}` on " in words}
    return frozenset(needed - {pb.OP_DESCRIBE} or needed)  # each other one allows to describe


def render(head: str) -> str:
    """Return the table that begins with this line."""
    if head == HEADS[0]:
        rows = [
            f"| `{kind}` | {need.words} | {'always' if kind in AUDITED else 'when it is refused'} |"
            for kind, need in sorted(RULES.items())
        ]
    else:
        rows = [
            f"| {what} | {', '.join(f'`{kind}`' for kind in kinds)} | "
            f"{' and '.join(f'`{operation_name(each)}`' for each in sorted(spark_needs(what)))} on each topic |"
            for what, kinds in SPARK.items()
        ]
    return "\n".join([head, "| --- | --- | --- |", *rows, ""])


def shown(head: str) -> str:
    """Return that table as the page has it."""
    (found,) = re.findall(r"(?<=\n)" + re.escape(head) + r"\n(?:\|[^\n]*\n)+", PAGE.read_text())
    return str(found)


if __name__ == "__main__":
    for each in HEADS:
        PAGE.write_text(PAGE.read_text().replace(shown(each), render(each)))
