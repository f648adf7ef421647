"""Routes for administrators: topics, groups, nodes, API keys, access rules and quotas."""
