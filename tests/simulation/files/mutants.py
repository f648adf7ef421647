"""Ways to get shared files wrong: each breaks one thing in the shipped commit log or in its stores."""

from __future__ import annotations

from tests.simulation import mutations_shared_files as shared
from tests.simulation.files.world import FilesWorld
from tests.simulation.hints import hint
from tests.simulation.mutants import Mutant, switched_on
from tests.simulation.truth import ViolationError

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("the log is not synced", shared.not_synced),
        Mutant("a mark precedes its sync", shared.marks_before_the_sync),
        Mutant("the log is not written again at a start", shared.not_rewritten),
        Mutant("torn ends of tails are not recorded", shared.torn_ends_not_recorded),
        Mutant("a cut of a tail is not recorded", shared.cut_not_recorded),
        Mutant("a cut that is damaged goes unnoticed", shared.divergence_not_seen),
        Mutant("marks are not heeded", shared.marks_not_heeded),
        Mutant("a bad record ends all tails", shared.bad_record_ends_all_tails),
        Mutant("the log ends at the first bad record", shared.log_ends_at_a_bad_record),
        Mutant("a tail of which only marks are left is not begun again", shared.unknown_tails_stay_broken),
        Mutant("a copy of a tail counts without its end", shared.copies_without_an_end),
        Mutant("copies are not checked", shared.copies_not_checked),
        Mutant("a file is deleted before copies are synced", shared.deleted_before_copies_are_synced),
        Mutant("a file is deleted with living tails", shared.deleted_with_living_tails),
        Mutant("a snapshot is saved before the log is synced", shared.snapshot_before_the_sync),
        Mutant("a tail is emptied before segments are synced", shared.emptied_before_segments_are_synced),
        Mutant("a store is forgotten before it is moved", shared.forgotten_before_it_is_moved),
        Mutant("segments below a cut tail are left", shared.segments_not_cut),
        Mutant("an epoch is moved without its tail", shared.moved_without_the_tail),
    )
}


def notice(name: str, seeds: int) -> str:
    """Run a mutant until a seed detects it, and return the seed and the failed check; empty if none does."""
    told = hint("files", name)
    first = () if told is None else (told[1],)
    with switched_on(MUTANTS[name]):
        for seed in (*first, *range(seeds)):
            try:
                FilesWorld(seed).run()
            except ViolationError as error:
                return f"seed {seed}: {error.invariant}"
            except Exception as error:  # noqa: BLE001 - any other exception also detects the mutant
                return f"seed {seed}: {type(error).__name__}"
    return ""
