"""One partition of this node, and all of them: the single writer, reading, retention."""
