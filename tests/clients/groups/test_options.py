from __future__ import annotations

from typing import Any

import pytest

from tidelog import Group
from tidelog.errors import InvalidRequestError
from tidelog.groups.options import group_of


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"commit": "sometimes"},
        {"assignor": "mine"},
        {"session_timeout_s": 0.4},
        {"session_timeout_s": 1801.0},
        {"session_timeout_s": float("nan")},
        {"poll_timeout_s": 0.0},
        {"poll_timeout_s": float("nan")},
        {"commit_interval_s": 0.0},
        {"commit_interval_s": float("nan")},
        {"instance_id": ""},
        {"instance_id": "x" * 1000},
        {"instance_id": "\ud800"},
        {"instance_id": 5},
        {"takeover": "later"},
        {"name": 5},
        {"name": None},
        {"on_assigned": 3},
        {"on_revoked": "text"},
        {"on_lost": []},
    ],
    ids=repr,
)
def test_invalid_values_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Group(**{"name": "g", **options})


def test_group_is_given_by_name_or_options() -> None:
    assert (group_of(None), group_of("g"), group_of(Group("h"))) == (None, Group("g"), Group("h"))
    wrong: Any = 123
    with pytest.raises(InvalidRequestError, match=r"a name, a Group\(...\) or None, got 123"):
        group_of(wrong)


def test_valid_values_are_accepted() -> None:
    options = Group(
        "g",
        commit="manual",
        assignor="load",
        session_timeout_s=0.5,
        poll_timeout_s=float("inf"),
        commit_interval_s=float("inf"),
    )
    assert (options.commit, options.assignor, options.instance_id, options.takeover) == ("manual", "load", None, "wait")
