"""Who calls: credentials, their verification in fair order, and checks of hosts and origins."""
