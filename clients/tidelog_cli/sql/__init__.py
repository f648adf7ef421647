"""`tidelog sql`: topics as tables of an embedded engine, DuckDB or Spark, which somebody else has installed.

    command    the command: once, or anew whenever records came
    tables     which topics a statement names, and the offsets that one answer is made of
    columns    what a topic's columns are: a record's own, and the fields of JSON values, found by looking at some
    dataset    a topic as Arrow columns that an engine may read as often as it likes
    duckdb_engine, spark_engine   ask an engine
    answers    print what it answers

See docs/adr/0098.
"""
