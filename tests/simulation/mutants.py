"""Faulty variants of replication, each of which loses or forks data: the checks must detect every one.

A mutant replaces a method of the core, or of the world's driver, while it is switched on; nothing of it exists in what
is shipped. `LISTED` are those that a model of the protocol showed to be fatal; `FURTHER` came with the code: chaining,
producers, readers, the driver's order of things. `test_mutants` kills them, `python -m tests.simulation.kill` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from tests.simulation import mutations_compaction as compaction
from tests.simulation import mutations_content as content
from tests.simulation import mutations_deletion as deletion
from tests.simulation import mutations_disk as disk
from tests.simulation import mutations_driver as driver
from tests.simulation import mutations_index as index
from tests.simulation import mutations_log as log
from tests.simulation import mutations_memory as memory
from tests.simulation import mutations_producers as producers
from tests.simulation import mutations_recovery as recovery
from tests.simulation import mutations_retention as retention
from tests.simulation import mutations_scrub as scrub
from tests.simulation import mutations_shared_files as shared
from tests.simulation import mutations_shell as shell
from tests.simulation import mutations_vote as vote
from tests.simulation import mutations_write_behind as behind
from tests.simulation.scenario import (
    AGES,
    COMPACTED_AND_DELETED,
    DEDUPLICATED,
    DELETED_AND_LOST,
    IN_MEMORY,
    IN_MEMORY_ASYNC,
    INDEXED,
    KEYED_REQUESTS,
    LOST_SEGMENTS,
    RESTARTED_OWNER,
    RETENTION,
    SCRUBBED,
    SHARED_FILES,
    SHARED_IDS,
    UNSAFE,
    WISHES,
)
from tests.simulation.scenario import COMPACTION as COMPACTED

Replacement = tuple[object, str, object]
"""An object, the name of an attribute, and its replacement."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant. `replacements` is called for every run."""

    name: str
    replacements: Callable[[], Sequence[Replacement]]
    mixture: str | None = None
    """Mixture of faults, or script, that detects it soonest; None: any mixture."""
    first_seed: int = 0
    """Where `notice` begins: for mutants that few seeds detect, shortly before one that does."""

    @property
    def is_in_core(self) -> bool:
        """Whether the small cluster has it, too; its log and its driver are not those of the simulated world."""
        shells = (
            driver,
            shell,
            disk,
            recovery,
            retention,
            index,
            compaction,
            scrub,
            content,
            producers,
            memory,
            behind,
            shared,
        )
        return self.replacements.__module__ not in {one.__name__ for one in shells}


LISTED = [
    Mutant("reading without sealing", vote.seal_promises_nothing),
    Mutant("no fence check", vote.append_ignores_promise, mixture="lags"),
    Mutant("not adopting an accepted value", vote.adopts_nothing),
    Mutant("minimum instead of maximum", vote.shortest_end),
    Mutant("fence not persisted", driver.fences_not_written),
    Mutant("accept ignores the promise", vote.accept_ignores_promise),
    Mutant("accept without holding the log", vote.accept_without_log),
    Mutant("a wiped replica answering", driver.wiped_node_keeps_its_id, mixture="wiped holder"),
    Mutant("a seal quorum of 1", vote.seal_quorum_of_one),
    Mutant("serving before the end is known", vote.decided_by_one),
    Mutant("truncating to the watermark", driver.truncates_to_watermark),
    Mutant("truncating on OPEN without a ballot check", log.truncates_on_open),
    Mutant("fast path at a high ballot", vote.fast_path_at_high_ballot, mixture="crossing"),
    Mutant("promise not checked again after a fetch", vote.promise_not_checked_after_fetch, mixture="slow fetch"),
    Mutant("appending after the fast proposal", log.appends_after_proposal),
    Mutant("a second value at the reserved ballot", vote.second_value_at_reserved_ballot),
    Mutant("backfill not checked by digest", log.backfill_unchecked, mixture="copies"),
    Mutant("commit by bare offset", log.commit_by_bare_offset, mixture="stale tail"),
    Mutant("acknowledgement by bare offset", log.ack_by_bare_offset, mixture="stale tail"),
    Mutant("an old tail taken for a duplicate", log.old_tail_is_duplicate),
    Mutant("fence forgotten on entering the next epoch", vote.fence_dropped_before_decision, mixture="cut entry"),
    Mutant("SEAL of the next epoch answered with the old tail", log.old_tail_in_next_epoch),
    Mutant(
        "acknowledging and fetching after a promise",
        log.acknowledges_and_fetches_after_promise,
        mixture="slow catch-up",
    ),
    Mutant("a rebooted replica answering SEAL short", driver.reboot_forgotten, mixture="rebooted holder"),
]

FURTHER = [
    Mutant("an owner that keeps its deadlines over every step", driver.deadlines_kept_over_every_step),
    Mutant("a reboot forgotten by the next start", driver.reboot_noted_in_memory, mixture="rebooted holder"),
    Mutant("backfill cut short", log.fill_cut_short),
    Mutant("readers past the commit", driver.reads_past_commit),
    Mutant("readers past a cut", driver.reads_past_cut, mixture="late cut"),
    Mutant("producers lost at takeover", driver.producers_forgotten),
    Mutant("retries get new offsets", log.retries_are_new),
    Mutant("one acknowledgement fewer", log.one_ack_fewer),
    Mutant("quorum clamped to the living", vote.quorum_of_the_living),
    Mutant("membership as authority", vote.membership_decides),
    Mutant("acknowledged before synced", driver.tells_before_sync),
    Mutant("synced without a durable name", driver.synced_without_a_name, mixture="lights out"),
    Mutant("accepted before the log is synced", driver.accepts_unsynced, mixture="lights out"),
    Mutant("a planned end of before the sync ahead", vote.end_of_before_sync_ahead, mixture="lights out"),
    Mutant("an accept that relies on the sync ahead", vote.sync_ahead_is_enough, mixture="lights out"),
    Mutant("accept answered before persisted", vote.accept_answered_early),
    Mutant("promise answered before persisted", vote.promise_answered_early),
    Mutant("an accepted value taken for decided", vote.accepted_is_decided),
    Mutant("the log's end taken for the watermark", log.end_is_watermark),
    Mutant("the owner goes on after its own promise", log.owner_goes_on_after_promise, mixture="late seal"),
    Mutant("a restarted owner resumes", log.restarted_owner_resumes),
    Mutant("the tail kept past the end of its epoch", log.tail_not_truncated),
    Mutant("LIMBO not heeded", driver.limbo_not_heeded, mixture="rotten holder"),
    Mutant("decision entered before it is journalled", log.enters_before_journal),
    Mutant("a start that only syncs the log", disk.log_only_synced, mixture="failed syncs"),
    Mutant("a lost directory taken for one that never was", disk.lost_directory_is_empty, mixture="emptied holder"),
    Mutant("a start that only syncs the journals", disk.journal_only_synced, mixture="failed syncs"),
]

SHELL = [
    Mutant("a decision by the next epoch's quorum", vote.decides_by_the_next_quorum, mixture=WISHES),
    Mutant("the end in a promise taken before queued appends", vote.seal_end_before_the_appends),
    Mutant("doubt ended by the owner's first answer", log.doubt_ended_by_the_first_answer, mixture="rebooted follower"),
    Mutant("fences told as written at once", shell.fences_told_at_once),
    Mutant("later journal entries told with a group", shell.later_entries_told_too),
    Mutant("compaction drops the newest fence", shell.compaction_drops_the_newest),
    Mutant("a reboot not told to the logs", shell.reboot_not_told_to_logs, mixture="rebooted holder"),
    Mutant("a reboot noted before all logs are open", shell.reboot_noted_too_soon, mixture="reboot cut short"),
    Mutant("appends told as written at once", shell.appends_told_at_once),
    Mutant("doubt ended by any write", shell.doubt_ended_by_any_write, mixture="rebooted follower"),
    Mutant("stamped by a clock that goes back", shell.clock_taken_as_it_is),
    Mutant("acknowledged by the owner alone", shell.owner_is_a_quorum),
    Mutant("acks=all taken for a quorum", shell.all_is_a_quorum),
    Mutant("batches truncated at an epoch's end answered as stored", shell.cut_off_is_stored),
    Mutant("batches kept at an epoch's end answered as not stored", shell.stored_is_denied),
    Mutant("retries answered before their first attempt is", shell.retries_answered_at_once),
    Mutant("going on in an epoch that ended meanwhile", shell.goes_on_in_an_ended_epoch, mixture="plans"),
    Mutant("memory read past the commit", shell.memory_read_past_commit),
    Mutant("an owner confirmed by itself", shell.confirmed_at_once, mixture="late cut"),
    Mutant("refused beyond what a node knows", shell.refused_behind_what_it_knows),
    Mutant("retention past the commit", retention.deletes_what_is_not_committed, mixture=RETENTION),
    Mutant("doubt ended by a restarted owner", log.doubt_ended_by_a_restarted_owner, mixture=RESTARTED_OWNER),
]
"""Mutants of the node around its replicas, and of later worlds."""

RECOVERY = [
    Mutant("a recovery that hands on what was accepted unmarked", recovery.adopted_without_a_mark, mixture=UNSAFE),
    Mutant("a recovery without a mark", recovery.decided_without_a_mark, mixture=UNSAFE),
    Mutant("a recovery of the named copy alone", recovery.named_copy_is_the_truth, mixture=UNSAFE),
    Mutant("a recovery that does not wait for the others", recovery.others_not_waited_for, mixture=UNSAFE),
    Mutant("a loss that is not told", recovery.loss_not_told, mixture=UNSAFE),
    Mutant("an overruled node stops the recovered copy", recovery.who_knows_better_wins, mixture=UNSAFE),
    Mutant("an overruled node continues", recovery.who_knows_better_goes_on, mixture=UNSAFE),
    Mutant("stopping before it is known where chains part", recovery.parting_not_looked_for, mixture=UNSAFE),
    Mutant("a watermark beyond what was cut off", recovery.watermark_never_goes_back, mixture=UNSAFE),
]
"""Of an operator's recovery without a quorum: no other world and no walk has one."""

DELETING = [
    Mutant("retention within the bound", retention.deletes_within_the_bound, mixture=RETENTION),
    Mutant("retention of what a replica lacks", retention.deletes_what_a_replica_lacks, mixture=RETENTION),
    Mutant("the log's start forgotten by the next start", retention.log_start_forgotten, mixture=RETENTION),
    Mutant("a lost first segment not noticed", retention.lost_fronts_not_noticed, mixture=LOST_SEGMENTS, first_seed=5),
    Mutant("a lost copy not left behind", retention.lost_copies_are_not_left_behind, mixture=DELETED_AND_LOST),
    Mutant("a producers' snapshot of another log", retention.snapshot_unchecked, mixture=RETENTION, first_seed=150),
    Mutant(
        "producers deleted with the log", retention.producers_deleted_with_the_log, mixture=RETENTION, first_seed=130
    ),
    Mutant(
        "late copies taken for whole ones",
        retention.late_copies_taken_for_whole_ones,
        mixture=COMPACTED_AND_DELETED,
        first_seed=6930,
    ),
    Mutant("producers of what was cut off kept", retention.producers_of_cut_batches_kept, mixture="late cut"),
]
"""Mutants of retention."""

INDEXES = [
    Mutant("index behind the watermark", index.index_behind_the_watermark, mixture=INDEXED),
    Mutant("index entries behind a cut kept", index.entries_behind_a_cut_kept, mixture=INDEXED),
]
"""Mutants of lookups by key."""

DELETED = [
    Mutant("log start lost at takeover", deletion.lost_at_takeover, mixture=AGES),
    Mutant("log start lost at a planned end", deletion.lost_at_planned_end, mixture=RETENTION),
    Mutant("deleted by the owner alone", deletion.counted_by_the_owner_alone, mixture=RETENTION),
    Mutant("retention by wall clock", retention.by_wall_clock, mixture=AGES),
    Mutant("stamps by wall clock", retention.stamped_by_wall_clock, mixture=AGES, first_seed=70),
    Mutant("the oldest record of a segment decides", retention.oldest_record_decides, mixture=AGES),
    Mutant("hold ignored", retention.hold_ignored, mixture=AGES),
    Mutant("hold seen only when deleting begins", retention.hold_seen_when_it_begins, mixture=AGES, first_seed=90),
    Mutant("deleted records shown", retention.deleted_records_shown, mixture=AGES),
]
"""Mutants of requested deletions."""

COMPACTION = [
    Mutant("an older value kept", compaction.older_value_kept, mixture=COMPACTED),
    Mutant("tombstones dropped at once", compaction.tombstones_dropped_at_once, mixture=COMPACTED),
    Mutant("offsets renumbered by compaction", compaction.offsets_renumbered, mixture=COMPACTED),
    Mutant("a lossy pass without a digest check", compaction.undigested_while_records_are_lost, mixture=COMPACTED),
    Mutant("compacting what is not whole", compaction.compacted_without_being_whole, mixture=COMPACTED),
    Mutant("producers compacted away", compaction.producers_not_kept, mixture=COMPACTED),
    Mutant("the older version removed first", compaction.older_copy_removed_first, mixture=COMPACTED),
    Mutant("only the newest version given", compaction.only_the_newest_is_given, mixture=COMPACTED, first_seed=915),
    Mutant(
        "in place before the decision",
        compaction.put_in_place_before_the_decision_is_durable,
        mixture=COMPACTED,
        first_seed=370,
    ),
    Mutant("producers not fetched", compaction.producers_not_fetched, mixture=COMPACTED, first_seed=430),
    Mutant("made without its front", compaction.made_without_its_front, mixture=COMPACTED_AND_DELETED, first_seed=780),
    Mutant("borders not looked for", compaction.borders_not_looked_for, mixture=COMPACTED_AND_DELETED),
]
"""Mutants of compaction."""

SCRUBBING = [
    Mutant("nothing read again", scrub.nothing_read_again, mixture=SCRUBBED),
    Mutant("last segments not read again", scrub.last_segments_left_out, mixture=SCRUBBED),
    Mutant("rot told of and left", scrub.rot_told_and_left, mixture=SCRUBBED),
    Mutant("a rotten open epoch goes on", scrub.rotten_epoch_goes_on, mixture=SCRUBBED, first_seed=6850),
]
"""Mutants of scrubbing."""

DUPLICATES = [
    Mutant("a window that begins empty", content.window_begins_empty, mixture=DEDUPLICATED),
    Mutant("a window that outlives its epoch", content.window_outlives_its_epoch, mixture=DEDUPLICATED, first_seed=146),
    Mutant("duplicates answered at once", content.answered_at_once, mixture=DEDUPLICATED),
    Mutant("numbers of dropped records left over", content.numbers_of_dropped_records_left_over, mixture=DEDUPLICATED),
    Mutant("refused batches in the window", content.refused_batches_stay_in_the_window, mixture=DEDUPLICATED),
]
"""Of records that are dropped because of their content."""

SHARED = [
    Mutant("batches told by their numbers alone", producers.contents_not_compared, mixture=SHARED_IDS),
    Mutant("snapshots without what batches said", producers.contents_not_kept, mixture=SHARED_IDS, first_seed=40),
]
"""Of producers that have one id."""

KEYS = [
    Mutant("keys of requests not looked up", producers.keys_not_looked_up, mixture=KEYED_REQUESTS),
    Mutant("snapshots without the keys of requests", producers.keys_not_kept, mixture=KEYED_REQUESTS),
]
"""Of requests with an idempotency key."""

MEMORY = [
    Mutant("a ceiling that is not stored", memory.ceiling_not_stored, mixture=IN_MEMORY),
    Mutant("a ceiling that is raised once", memory.ceiling_raised_once, mixture=IN_MEMORY),
    Mutant("a ceiling that is not reported", memory.ceiling_not_reported, mixture=IN_MEMORY),
    Mutant("the lowest ceiling", memory.lowest_ceiling, mixture=IN_MEMORY),
    Mutant("a lost copy taken for a short log", memory.lost_copy_is_short_log, mixture=IN_MEMORY),
    Mutant("a lost copy whole with the first fetch", memory.acknowledged_in_doubt, mixture=IN_MEMORY, first_seed=68),
    Mutant("absent replicas not waited for", memory.absent_replicas_not_waited_for, mixture=IN_MEMORY),
    Mutant("a decision without the lost records", memory.ceilings_ignored, mixture=IN_MEMORY),
    Mutant("lost records forgotten by the next decision", memory.loss_not_carried, mixture=IN_MEMORY, first_seed=45),
    Mutant("offsets of lost records given out", memory.offsets_not_filled, mixture=IN_MEMORY),
    Mutant("lost records skipped silently", memory.losses_skipped_silently, mixture=IN_MEMORY),
    Mutant("reads across lost records", memory.reads_run_into_losses, mixture=IN_MEMORY),
    Mutant("a log that is lost everywhere waited for", memory.lost_log_waited_for, mixture=IN_MEMORY),
    Mutant("a missing epoch taken for lost", memory.missing_is_lost, mixture=IN_MEMORY),
]
"""Of losses of records in memory."""

WRITE_BEHIND = [
    Mutant("a prefix taken for a whole copy", behind.prefix_is_whole, mixture=IN_MEMORY_ASYNC),
    Mutant("a ceiling that a prefix replaces", behind.no_ceiling_of_a_prefix, mixture=IN_MEMORY_ASYNC),
    Mutant("written records taken for durable", behind.survives, mixture=IN_MEMORY_ASYNC),
    Mutant("a part of an ended epoch taken for whole", behind.part_of_an_ended_epoch_is_whole, mixture=IN_MEMORY_ASYNC),
]
"""Of records in memory that are written in the background."""

FILES = [
    Mutant("a shared log that is not synced", shared.not_synced, mixture=SHARED_FILES),
    Mutant("a shared log not written again at a start", shared.not_rewritten, mixture=SHARED_FILES, first_seed=19),
    Mutant("a file deleted with living tails", shared.deleted_with_living_tails, mixture=SHARED_FILES),
    Mutant(
        "a tail emptied before segments are synced", shared.emptied_before_segments_are_synced, mixture=SHARED_FILES
    ),
    Mutant("an epoch moved without its tail", shared.moved_without_the_tail, mixture=SHARED_FILES),
    Mutant("joint writes that commit without followers", shared.joint_writes_with_followers, mixture=SHARED_FILES),
]
"""Of the commit log that partitions share; `tests.simulation.files.mutants` has more, which its own world detects."""

MUTANTS = {
    mutant.name: mutant
    for part in (
        *(LISTED, FURTHER, SHELL, RECOVERY, DELETING, INDEXES, DELETED, COMPACTION, SCRUBBING, DUPLICATES, KEYS),
        *(SHARED, MEMORY, WRITE_BEHIND, FILES),
    )
    for mutant in part
}


@contextmanager
def switched_on(mutant: Mutant) -> Iterator[None]:
    """Run the block with a mutant."""
    with ExitStack() as stack:
        for target, name, value in mutant.replacements():
            stack.enter_context(patch.object(target, name, value))
        yield
