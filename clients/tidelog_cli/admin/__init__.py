"""Commands for administrators: groups, access, quotas, users, contexts, and files for operators."""
