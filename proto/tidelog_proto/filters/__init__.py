"""Filters of rows of typed topics: conditions of callers, expressions of fields, their message and their evaluation.

`filter_text` and `arrow_expression` read the forms that callers write into `conditions`, which have names and values of
Python. `binding` makes the `expression` of a condition and a schema: a tree of tests of fields by id, without NOT.
`expression_messages` are its form on the wire. `rebinding` adapts an expression to the schema of a batch,
`matching_rows` evaluates it, exactly as readers do, and `filtered_batch` narrows a batch, as nodes do.
"""
