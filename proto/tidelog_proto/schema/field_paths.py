"""Fields by their names, as people write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from tidelog_proto.schema.fields import Field, path_text, paths_below
from tidelog_proto.schema.schema_error import SchemaError, shown


def field_at(fields: Sequence[Field], text: str) -> Field:
    """Return the field with a path such as `place.city` or `stops.item`. Names may contain dots themselves.

    Raises:
        SchemaError: no field has this path, or more than one.
    """
    found = list(_with_path(fields, text))
    if len(found) > 1:
        raise SchemaError(
            f"{shown(text)} is the path of {len(found)} fields, because names have dots; rename one first"
        )
    if not found:
        paths = [path_text(path) for path, _ in paths_below(fields)]
        close = get_close_matches(text, paths, n=3) or paths[:10]
        raise SchemaError(f"no field is named {shown(text)}; there are, for example: {', '.join(map(shown, close))}")
    return found[0]


def _with_path(fields: Sequence[Field], text: str) -> Iterator[Field]:
    for field in fields:
        if text == field.name:
            yield field
        elif text.startswith(field.name + "."):
            yield from _with_path(field.children, text[len(field.name) + 1 :])
