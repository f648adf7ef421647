"""The producer ids and epochs of names are the same in every release, and later pieces have higher epochs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tidelog.errors import InvalidRequestError
from tidelog.produce.work import PARTS_MAX, InstanceNumbers, Work, check_name, numbers_of
from tidelog_proto.limits import PRODUCER_EPOCH_MAX, PRODUCER_NAME_BYTES_MAX

PIECES = 16_383


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("orders", (1011978877882926195, 1024, 4294966272)),
        (Work("w", 0), (3204687265037082367, 1024, 262144)),
        (Work("w", 1), (3204687265037082367, 263168, 524288)),
        (Work("w", 0, 3), (7806204493097197881, 1024, 262144)),
        (Work("w", 20_000), (4102743810823978183, 948175872, 948436992)),
    ],
)
def test_stored_batches_keep_their_producers(name: str | Work, numbers: tuple[int, int, int]) -> None:
    assert numbers_of(name) == InstanceNumbers(*numbers)


def test_pieces_of_one_producer_id_have_rising_epochs_that_do_not_overlap() -> None:
    numbers = [numbers_of(Work("w", piece)) for piece in range(PIECES)]
    assert len({each.producer_id for each in numbers}) == 1
    assert all(earlier.last_epoch < later.first_epoch for earlier, later in pairwise(numbers))
    assert numbers[-1].last_epoch <= PRODUCER_EPOCH_MAX
    assert numbers_of(Work("w", PIECES)).producer_id != numbers[0].producer_id


def test_parts_and_names_have_ids_of_their_own() -> None:
    names: list[str | Work] = ["w", "w/3", Work("w", 0), Work("w", 0, 3), Work("w", 0, 4), Work("v", 0)]
    assert len({numbers_of(name).producer_id for name in names}) == len(names)
    assert Work("w", 7, 3).producer_name == "w/3"
    assert Work("w", 7).producer_name == "w"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "1 to"),
        ("x" * (PRODUCER_NAME_BYTES_MAX + 1), f"1 to {PRODUCER_NAME_BYTES_MAX} bytes"),
        (7, "must be a str"),
        (Work("", 0), "1 to"),
        (Work("w", -1), "piece number of a Work must be >= 0, got -1"),
        (Work("w", 0, -1), f"0 to {PARTS_MAX - 1}, got -1"),
        (Work("w", 0, PARTS_MAX), f"got {PARTS_MAX}"),
    ],
)
def test_invalid_names_are_refused(name: object, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        check_name(name)


def test_valid_names_are_accepted() -> None:
    for name in ("w", "x" * PRODUCER_NAME_BYTES_MAX, Work("w", 10**9, PARTS_MAX - 1)):
        check_name(name)
