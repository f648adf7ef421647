from __future__ import annotations

import pytest

from tidelog import Client
from tidelog.errors import InvalidRequestError
from tidelog_cli.base.session import with_client


async def never(client: Client) -> None:
    raise AssertionError(client)


@pytest.mark.parametrize("bootstrap", [",", " , "])
def test_no_address_is_refused(bootstrap: str) -> None:
    with pytest.raises(InvalidRequestError):
        with_client(bootstrap, never)


def test_any_of_several_addresses_will_do(node: str) -> None:
    status = with_client(f"127.0.0.1:1, {node}", lambda client: client.cluster_status())
    assert len(status.nodes) == 1
