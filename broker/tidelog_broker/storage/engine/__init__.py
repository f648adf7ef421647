"""The interface between a partition's log and the engines that store its epochs.

One epoch of one partition is the unit: it has one placement, one beginning, one decided end and one digest, so a topic
changes its engine where an epoch ends, and older epochs stay in the engine that they were written with. An `Engine`
creates and opens `EpochStore`s; everything above them (the sequence of epochs, copies from other nodes, retention,
compaction, repair, reads across epochs) is common to all engines and knows nothing else of them. An engine knows
neither watermarks nor quorums, producers or groups.

Each epoch has a directory of its own, which belongs to the log: the log creates and renames it as the role of the epoch
changes (`storage.partition.partition_dirs`), always while its store is closed. The contents of the directory are the
engine's: segment files, or a reference to data elsewhere.

A call may wait for the disk, unless the engine lists it in `Capabilities.never_wait`; so most calls run on the
partition's I/O worker. An engine reports three kinds of errors, see `storage.io.errors`: no space (`DiskFullError`,
nothing has changed), a failure (`StorageFailedError`, final), and damage (`DamagedError`, and `EpochStore.damage` with
the first unreadable offset).

Methods with a body are optional: their default is correct for every engine, but slow. `tidelog.testing.engine_suite`
tests an engine.
"""
