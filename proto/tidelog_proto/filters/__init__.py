"""Filters of rows of typed topics: the expression, its message, and its evaluation on Arrow columns.

`expression` is the tree, of tests of fields by id, without NOT. Clients make it of texts and other expressions
(`tidelog.filters`), nodes of messages (`expression_messages`). `rebinding` adapts it to the schema of a batch, and
`matching_rows` evaluates it.
"""
