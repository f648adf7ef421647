"""The memory engine: epochs whose records are only in memory."""
