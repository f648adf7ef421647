"""Helpers of every command: a connected client, output, exit codes, values of options."""
