"""Authentication of callers: credentials, their fair verification, checks of `Host` and `Origin`."""
