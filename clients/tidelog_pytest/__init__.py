"""Fixtures for pytest, in every test run where the package `tidelog` is installed: see `plugin`.

A package of its own, because pytest loads it at the start of each run, also of those that have nothing to do with
Tidelog: it imports nothing but pytest, and the client only when a fixture is asked for.
"""
