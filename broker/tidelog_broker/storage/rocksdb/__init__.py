"""The RocksDB engine: the epochs of a node in one database; see `rocks_engine`."""
