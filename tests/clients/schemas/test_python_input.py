from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, ClassVar, Literal, NewType, Optional

import pydantic
import pytest

from tidelog.schemas.python_input import fields_of_class
from tidelog_proto.schema.schema_error import SchemaError


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


Meters = NewType("Meters", int)


@dataclass
class Place:
    city: str
    height: Meters | None = None


@dataclass
class Flight:
    constant: ClassVar[int] = 1
    carrier: str = field(metadata={"doc": "IATA"})
    day: date
    at: datetime
    local: Annotated[datetime, "timestamp[us]"]
    delay: Annotated[int, "int16", "another"] | None
    ratio: Annotated[Optional[float], "float32"]  # noqa: UP045
    flag: bool = True
    raw: bytes | None = None
    price: Annotated[Decimal, "decimal128(9, 2)"] = Decimal(0)
    place: Place | None = None
    stops: list[Annotated[int, "int8"] | None] = field(default_factory=list)
    places: list[Place] | None = None
    color: Color = Color.RED
    level: Level = Level.LOW
    choice: Literal["a", "b"] = "a"
    strange: Annotated[int, "no type"] = 0


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    carrier: str = pydantic.Field(description="IATA")
    aware: pydantic.AwareDatetime
    naive: pydantic.NaiveDatetime | None
    price: Decimal = pydantic.Field(max_digits=9, decimal_places=2)
    other: Annotated[Decimal, pydantic.Field(max_digits=7, decimal_places=3)] | None = None
    small: Annotated[int, "int8", pydantic.Field(ge=0)] = 0
    place: Place
    parts: list[Place] = []


def described(class_: type) -> list[str]:
    return [
        f"{each.name} {each.type}{' required' if each.required else ''}{' ' + each.doc if each.doc else ''}"
        for each in fields_of_class(class_).fields
    ]


def test_a_dataclass() -> None:
    assert described(Flight) == [
        "carrier string required IATA",
        "day date32 required",
        "at timestamp[us, UTC] required",
        "local timestamp[us] required",
        "delay int16",
        "ratio float32",
        "flag bool required",
        "raw binary",
        "price decimal128(9, 2) required",
        "place struct",
        "stops list required",
        "places list",
        "color string required",
        "level int64 required",
        "choice string required",
        "strange int64 required",
    ]
    found = fields_of_class(Flight)
    assert [str(child.type) for child in found.fields[9].children] == ["string", "int64"]
    assert [(str(item.type), item.required) for item in found.fields[10].children] == [("int8", False)]
    notes = [note.replace(f"{__name__}.", "") for note in found.notes]
    assert notes[0] == "field 'at': datetime becomes timestamp[us, UTC]; annotate it with timestamp[us] for local times"
    assert notes[-1] == "field 'strange': the annotation 'no type' names no type, and is ignored"
    assert [note.split(":")[0] for note in notes] == [
        f"field '{x}'" for x in ("at", "color", "level", "choice", "strange")
    ]


def test_a_pydantic_model() -> None:
    assert described(Model) == [
        "carrier string required IATA",
        "aware timestamp[us, UTC] required",
        "naive timestamp[us]",
        "price decimal128(9, 2) required",
        "other decimal128(7, 3)",
        "small int8 required",
        "place struct required",
        "parts list required",
    ]


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (int | str, "is a union; only a type or None is supported"),
        (int | str | None, "is a union"),
        (None, "the Python type .*NoneType.* is not supported; use bool, int"),
        (Any, "the Python type typing.Any is not supported"),
        (dict[str, int], "the Python type dict"),
        (list, "the Python type <class 'list'>"),
        (list[Any], r"field 'x\.item': the Python type typing.Any"),
        (tuple[int, ...], "the Python type tuple"),
        (time, "the Python type <class 'datetime.time'>"),
        (complex, "the Python type <class 'complex'>"),
        (Decimal, "a Decimal has no number of digits; annotate it, such as"),
        (Annotated[str, "int8"], "str is annotated with int8; choose a type that fits"),
        (Annotated[int, "float64"], "int is annotated with float64"),
        (Literal["a", 1], "the Python type typing.Literal"),
        (Literal[True], "the Python type typing.Literal"),
        ("Unknown", "the annotations of .* cannot be evaluated: name 'Unknown' is not defined"),
    ],
)
def test_other_types_are_refused(hint: Any, message: str) -> None:
    class_: Any = dataclass(type("Row", (), {"__annotations__": {"x": hint, "y": int}}))
    with pytest.raises(SchemaError, match=message):
        fields_of_class(class_)


@dataclass
class Node:
    one: Node | None
    other: Node | None


def test_a_class_that_contains_itself_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"'one\.one\.one\.one\.one': there are more than 1024 fields or 4 levels"):
        fields_of_class(Node)


@pytest.mark.parametrize("thing", [int, Color, "text", Flight.__init__, list[Flight]])
def test_other_things_are_refused(thing: Any) -> None:
    with pytest.raises(SchemaError, match="is neither a dataclass nor a pydantic model; give one of these"):
        fields_of_class(thing)
