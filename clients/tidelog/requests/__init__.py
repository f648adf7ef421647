"""Requests to partition owners and coordinators, one question a time."""
