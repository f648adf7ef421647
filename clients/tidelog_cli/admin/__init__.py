"""Commands for administrators: groups, access, quotas, users, contexts, and deployment files."""
