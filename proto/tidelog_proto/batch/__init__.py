"""The record batch: header, Arrow columns, compression, hashes, verification."""
