"""Requests that are answered without the framework: the frequent ones, in the form that most clients send."""
