"""Requests to partition owners and group coordinators."""
