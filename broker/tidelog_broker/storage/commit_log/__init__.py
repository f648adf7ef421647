"""The shared file model: the newest records of many partitions in one commit log, older ones in segments (ADR 0196)."""
