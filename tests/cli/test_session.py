from __future__ import annotations

import pytest

from tidelog import Client
from tidelog_cli.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.session import with_client


async def never(client: Client) -> None:
    raise AssertionError(client)


@pytest.mark.parametrize("bootstrap", ["", " , "])
def test_no_address_is_usage(bootstrap: str) -> None:
    with pytest.raises(CommandFailed, match="HOST:PORT") as caught:
        with_client(bootstrap, never)
    assert caught.value.exit_code == EXIT_USAGE


def test_any_of_several_addresses_will_do(node: str) -> None:
    status = with_client(f"127.0.0.1:1, {node}", lambda client: client.cluster_status())
    assert len(status.nodes) == 1
