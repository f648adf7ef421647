"""Rows of typed topics: Python objects, Arrow columns and JSON as the columns of batches, and back.

`row_writer` checks and copies rows, `value_checks` single values, `arrow_rows` Arrow columns, `json_rows` parses JSON.
`tidelog_proto.batch.row_reader` makes rows of batches, `row_models` instances of classes of them, and `json_view` JSON.
"""
