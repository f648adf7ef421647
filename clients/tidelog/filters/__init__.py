"""Filters as callers write them: texts and pyarrow expressions.

`filter_text` and `arrow_expression` read them into `conditions`, which name fields and have values of Python.
`binding` makes the expression of a condition and a schema, and `row_filter` applies it.
"""
