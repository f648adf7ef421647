"""Helpers for all packages of the client; they import none of these packages."""
