"""Schemas of typed topics: the model, its canonical encoding and Arrow types, evolution, and reading across schemas.

`topic_schema.Schema` is the model, `arrow_types.value_type` the type of the column `value`.
"""
