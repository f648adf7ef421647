from __future__ import annotations

import pytest

from tidelog_loadtest.probe.wire import ALIGNMENT_BYTES, REPLY, REQUEST, aligned


@pytest.mark.parametrize(("length", "padded"), [(0, 0), (1, 64), (64, 64), (65, 128), (416_296, 416_320)])
def test_payloads_are_padded_as_batches_are(length: int, padded: int) -> None:
    assert aligned(length) == padded
    assert padded % ALIGNMENT_BYTES == 0


def test_headers_have_their_fixed_sizes() -> None:
    assert (REQUEST.size, REPLY.size) == (24, 16)
