"""Rows of typed topics: Python objects and Arrow columns to the columns of batches, and back.

`row_writer` checks and copies rows, `value_checks` single values, `arrow_rows` Arrow columns. `row_reader` makes rows
of batches, `row_models` instances of classes, and `json_rows` converts rows from and to JSON.
"""
