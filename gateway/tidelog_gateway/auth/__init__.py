"""Authentication of callers: credentials, their verification in fair order, checks of hosts and origins."""
