"""Fixtures for pytest in every test run with the package `tidelog` installed: see `plugin`.

The fixtures are not in the package `tidelog`, because pytest loads this package at the start of each run, including
runs without Tidelog: it imports only pytest, and the client only when a test uses a fixture.
"""
