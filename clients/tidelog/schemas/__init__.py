"""Schemas of typed topics in other languages: Parquet and CSV files, Python classes, JSON Schema, Avro.

`fields_of_...` makes fields of a description, once; they are those of `tidelog_proto.schema`.
"""
