from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from tidelog import Client, sync

DUMPS: list[Callable[[Any], object]] = [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy]


@pytest.mark.parametrize("dump", DUMPS)
async def test_pickling_a_client_raises_with_the_remedy(dump: Callable[[Any], object]) -> None:
    async with Client("127.0.0.1:1") as client:
        for each in (client, client.producer("t"), client.consumer("t"), {"nested": [client]}):
            if dump is copy.copy and isinstance(each, dict):
                continue  # a shallow copy would share the connections
            with pytest.raises(TypeError, match=r"cannot be pickled or copied: .* create one where it is used"):
                dump(each)


@pytest.mark.parametrize("dump", DUMPS)
def test_pickling_a_blocking_client_raises_with_the_remedy(dump: Callable[[Any], object]) -> None:
    with sync.Client("127.0.0.1:1") as client:
        for each in (client, lambda: client):
            if dump in {copy.copy, copy.deepcopy, pickle.dumps} and callable(each):
                continue  # functions are copied and pickled by name
            with pytest.raises(TypeError, match="create one where it is used"):
                dump(each)
