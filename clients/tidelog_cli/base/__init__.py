"""Helpers of all commands: a connected client, output, exit codes, parsing of option values."""
