"""One partition of this node, and the set of all of them: writing, reading, retention, compaction."""
