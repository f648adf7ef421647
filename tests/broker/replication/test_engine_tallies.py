from __future__ import annotations

from tidelog_broker.replication.engine_tallies import ENGINES_COUNTED_MAX, OTHER_ENGINES, EngineTallies


def test_engines_have_tallies_of_their_own_up_to_a_limit() -> None:
    tallies = EngineTallies()
    for number in range(ENGINES_COUNTED_MAX):
        tallies.of(f"engine-{number}").appends += 1
    tallies.of("engine-0").appends += 1
    tallies.of("one more").syncs += 1
    tallies.of("another").syncs += 1
    found = dict(tallies.all())
    assert len(found) == ENGINES_COUNTED_MAX + 1
    assert (found["engine-0"].appends, found["engine-1"].appends) == (2, 1)
    assert found[OTHER_ENGINES].syncs == 2
