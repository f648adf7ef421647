"""Handlers of all request kinds, one module per family.

A handler receives the broker and a request and answers it exactly once. Handlers on hot paths are plain functions with
callbacks; the others are coroutines.
"""
