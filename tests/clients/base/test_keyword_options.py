from __future__ import annotations

import inspect
from typing import Any, TypedDict

import pytest

import tidelog
import tidelog.sync
from tidelog.base.keyword_options import takes_options
from tidelog.client_options import ClientOptions
from tidelog.produce.producer_options import ProducerArguments, ProducerOptions
from tidelog.subscriptions.consumer_options import ConsumerArguments, ConsumerOptions


class Options(TypedDict, total=False):
    size: int


def test_options_are_in_the_signature_with_types_and_defaults() -> None:
    def source(*, size: int = 3, other: int = 0) -> int:
        return size + other

    @takes_options(Options, source)
    def shown(*names: str, first: int = 1, **options: int) -> int:
        return source(**options) + first + len(names)

    assert str(inspect.signature(shown)) == "(*names: 'str', first: 'int' = 1, size: 'int' = 3) -> 'int'"
    assert shown("a", size=4) == 6


@pytest.mark.parametrize(
    ("options", "source", "beside"),
    [
        (ProducerArguments, ProducerOptions, set[str]()),
        (ConsumerArguments, ConsumerOptions.of, {"topics", "group"}),
        (ClientOptions, tidelog.Client, {"bootstrap", "router"}),
    ],
)
def test_each_option_is_listed_with_the_same_type(options: type, source: type, beside: set[str]) -> None:
    taken = {name: each for name, each in inspect.signature(source).parameters.items() if name not in beside}
    listed = {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()}
    assert listed == {name: each.annotation for name, each in taken.items()}


@pytest.mark.parametrize("module", [tidelog, tidelog.sync])
async def test_unknown_option_is_a_type_error_of_the_call(module: object) -> None:
    kind: type = vars(module)["Client"]
    with pytest.raises(TypeError, match=r"^Client.__init__\(\) got an unexpected keyword argument 'zones'$"):
        kind("127.0.0.1:1", zones="a")
    client = kind("127.0.0.1:1")
    with pytest.raises(TypeError, match=r"^Client.producer\(\) got an unexpected keyword argument 'ack'$"):
        client.producer("t", ack="1")
    with pytest.raises(TypeError, match=r"^Client.consumer\(\) got an unexpected keyword argument 'from_start'$"):
        client.consumer("t", from_start=True)


def test_options_that_only_the_source_takes_are_refused() -> None:
    unlisted: dict[str, Any] = {"router": None}
    with pytest.raises(TypeError, match="'router'"):
        tidelog.sync.Client("127.0.0.1:1", **unlisted)
