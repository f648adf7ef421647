from __future__ import annotations

from tidelog.errors import ForbiddenError
from tidelog.requests.partial_results import NAMED_MAX, attach_done


def test_stretches_of_partitions_are_named_and_all_are_told() -> None:
    error = ForbiddenError("no")
    attach_done(error, dict.fromkeys([7, 0, 1, 2, 5], "x"), "committed")
    assert str(error) == "no; committed all the same: partitions 0 to 2, 5, 7"
    assert set(error.done) == {0, 1, 2, 5, 7}
    one = ForbiddenError("no")
    attach_done(one, {3: "x"}, "committed")
    assert str(one) == "no; committed all the same: partition 3"


def test_a_message_names_so_many_and_an_error_beside_which_nothing_was_done_stays_as_it_is() -> None:
    many = ForbiddenError("no")
    attach_done(many, dict.fromkeys(range(0, 100, 2), 1), "deleted")
    assert str(many) == f"no; deleted all the same: partitions {', '.join(str(2 * at) for at in range(NAMED_MAX))}, ..."
    assert len(many.done) == 50
    none = ForbiddenError("no")
    attach_done(none, {}, "deleted")
    assert (str(none), none.done, none.definite) == ("no", {}, True)
