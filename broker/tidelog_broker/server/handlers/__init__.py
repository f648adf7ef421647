"""What the node does with each kind of envelope, one module a family.

A handler takes the node and a request and answers it exactly once. Those on the hot path are plain functions
with callbacks; the others are coroutines.
"""
