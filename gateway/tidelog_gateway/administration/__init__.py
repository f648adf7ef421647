"""Routes for administrators: topics, groups, nodes, API keys, access rules, quotas, health and metrics."""
