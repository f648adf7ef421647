from __future__ import annotations

from tidelog.errors import ForbiddenError
from tidelog.requests.partial_results import NAMED_MAX, attach_done


def test_message_lists_ranges_of_done_partitions() -> None:
    error = ForbiddenError("no")
    attach_done(error, dict.fromkeys([7, 0, 1, 2, 5], "x"), "committed")
    assert str(error) == "no; committed nevertheless: partitions 0 to 2, 5, 7"
    assert set(error.done) == {0, 1, 2, 5, 7}
    one = ForbiddenError("no")
    attach_done(one, {3: "x"}, "committed")
    assert str(one) == "no; committed nevertheless: partition 3"


def test_message_is_bounded_and_unchanged_without_done_partitions() -> None:
    many = ForbiddenError("no")
    attach_done(many, dict.fromkeys(range(0, 100, 2), 1), "deleted")
    assert str(many) == f"no; deleted nevertheless: partitions {', '.join(str(2 * at) for at in range(NAMED_MAX))}, ..."
    assert len(many.done) == 50
    none = ForbiddenError("no")
    attach_done(none, {}, "deleted")
    assert (str(none), none.done, none.definite) == ("no", {}, True)
