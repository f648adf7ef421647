from __future__ import annotations

import pytest

from tidelog_loadtest.users.time_stamps import VALUE_CHARS, age_ms, stamped


def test_a_stamped_value_has_an_age() -> None:
    value = stamped()
    assert len(value) == VALUE_CHARS
    first = age_ms(value)
    assert 0 <= first <= age_ms(value)


def test_another_value_is_rejected() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        age_ms("no time in here at all")
