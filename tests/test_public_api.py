"""The public API: the names of `tidelog`, each documented and fully typed. A change here is a release note.

Signatures, fields and the words that parameters may have are in `public_api.txt`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator

import pytest
from tests import public_api

import tidelog
import tidelog.sync
import tidelog.testing
from tidelog.base.internal import internal, is_internal

PUBLIC = {
    "Client",
    "ClusterStatus",
    "Committed",
    "Compacted",
    "ConsumedBatch",
    "Consumer",
    "Fetched",
    "Group",
    "GroupInfo",
    "GroupMemberInfo",
    "Lag",
    "NextDeletion",
    "Node",
    "Offset",
    "Partition",
    "PendingReceipt",
    "PendingReceipts",
    "Producer",
    "Receipt",
    "ReceiptRange",
    "Receipts",
    "Record",
    "RecordBatch",
    "Recovery",
    "Replica",
    "StoredEpochs",
    "TidelogError",
    "Topic",
    "TopicFigures",
    "TopicPartition",
    "dataset",
    "errors",
    "read_arrow",
    "scan_polars",
}

MODULES = [tidelog, tidelog.sync, tidelog.testing]


def members(cls: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public functions and properties that a class of ours defines."""
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and not is_internal(member):
            yield f"{cls.__name__}.{name}", function


def public_functions(module: object, names: list[str]) -> list[tuple[str, Callable[..., object]]]:
    found: list[tuple[str, Callable[..., object]]] = []
    for name in names:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            found.extend(members(thing))
        elif inspect.isfunction(thing):
            found.append((name, thing))
    return found


def test_the_names_are_these() -> None:
    assert set(tidelog.__all__) == PUBLIC
    assert sorted(tidelog.__all__) == list(tidelog.__all__)
    assert [name for name in tidelog.__all__ if not hasattr(tidelog, name)] == []


def test_the_blocking_face_has_the_same_names() -> None:
    assert set(tidelog.sync.__all__) == PUBLIC - {"dataset", "read_arrow", "scan_polars"}, "they block already"
    for name in ("Client", "Producer", "Consumer", "PendingReceipt", "PendingReceipts"):
        asynchronous = {member for member, function in members(getattr(tidelog, name)) if not is_internal(function)}
        blocking = {member for member, _ in members(getattr(tidelog.sync, name))}
        assert asynchronous - blocking == set()


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer"])
def test_the_blocking_face_takes_the_same_arguments(name: str) -> None:
    blocking = dict(members(getattr(tidelog.sync, name)))
    differences = [
        member
        for member, function in members(getattr(tidelog, name))
        if not is_internal(function)
        and list(inspect.signature(function).parameters) != list(inspect.signature(blocking[member]).parameters)
    ]
    assert differences == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_everything_public_is_documented(module: object) -> None:
    names: list[str] = getattr(module, "__all__", ["Client"])
    undocumented = [name for name in names if not inspect.getdoc(getattr(module, name))]
    undocumented += [name for name, function in public_functions(module, names) if not inspect.getdoc(function)]
    assert undocumented == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_signature_is_typed(module: object) -> None:
    untyped = []
    for name, function in public_functions(module, getattr(module, "__all__", ["Client"])):
        signature = inspect.signature(function)
        parameters = [each for each in signature.parameters.values() if each.name not in {"self", "cls"}]
        if signature.return_annotation is inspect.Signature.empty or any(
            each.annotation is inspect.Parameter.empty for each in parameters
        ):
            untyped.append(name)
    assert untyped == []


def test_names_marked_as_internal_are_not_public() -> None:
    class Marked:
        @internal
        def verb(self) -> None: ...

        @property
        @internal
        def noun(self) -> int:
            return 1

        @property
        def other(self) -> int:
            return 2

    assert [is_internal(each) for each in (Marked.verb, Marked.noun, Marked.other)] == [True, True, False]
    told = {
        line.partition("(")[0].partition(":")[0].removesuffix(" async") for line in public_api.render().splitlines()
    }
    for consumer in ("tidelog.Consumer", "tidelog.sync.Consumer"):
        assert {f"{consumer}.{name}" for name in ("poll", "next_batch", "skipped")} <= told
        inner = ("ask", "cursor", "fill", "has_arrivals", "more", "reads_until", "turn")
        assert not {f"{consumer}.{name}" for name in inner} & told


def test_signatures_fields_and_choices_are_those_of_the_page() -> None:
    kept, now = public_api.PAGE.read_text().splitlines(), public_api.render().splitlines()
    changes = [line for line in difflib.ndiff(kept, now) if line[0] in "+-"]
    said = "\n".join(changes)
    assert not changes, f"the public API differs; if that is meant, write `python -m tests.public_api`:\n{said}"


def test_the_page_of_the_api_has_the_main_names() -> None:
    lines = public_api.PAGE.read_text().splitlines()
    for name in (
        "tidelog.Client.commit(",
        "tidelog.sync.Client.commit(",
        "tidelog.Group(name, commit=",
        "tidelog.Lag(",
    ):
        assert [line for line in lines if line.startswith(name)], name
    for module in (*public_api.WHOLE, *public_api.BEHIND, *public_api.CHOICES):
        assert [line for line in lines if line.startswith(f"{module}.")], module
    assert [line for line in lines if " at 0x" in line] == []
