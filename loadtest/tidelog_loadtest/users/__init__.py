"""The load test: locust users, mixes, limits and the report."""
