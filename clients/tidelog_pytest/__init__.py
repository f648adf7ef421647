"""Fixtures for pytest in every test run with the package `tidelog` installed: see `plugin`.

It is a separate package, because pytest loads it at the start of each run, including runs without Tidelog: it imports
only pytest, and the client only when a test uses a fixture.
"""
