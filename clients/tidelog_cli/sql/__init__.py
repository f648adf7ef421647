"""`tidelog sql`: topics as tables of an embedded SQL engine, DuckDB or Spark, which is installed separately.

Modules:

    command    the command: runs a statement once, or again whenever there are new records
    tables     the topics of a statement, and the offset range of an answer
    columns    the columns of a topic: those of records, and fields of JSON values, detected from a sample
    duckdb_engine, spark_engine   the engines
    answers    output of results
    into_topic  publishing of results
    dead_letter_records  publishing of records that do not fit their columns

See docs/adr/0098.
"""
