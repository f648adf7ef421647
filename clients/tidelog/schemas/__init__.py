"""Schemas of typed topics in other languages: Parquet and CSV files, Python classes, JSON Schema, Avro.

`fields_of_parquet`, `fields_of_csv`, `fields_of_class`, `fields_of_json_schema` and `fields_of_avro` make fields for
`tidelog_proto.schema`, once; `python_source`, `json_schema` and `avro_schema` write a schema in these languages.
"""
