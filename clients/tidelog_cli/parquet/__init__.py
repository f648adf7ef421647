"""`tidelog export` and `tidelog import`: a topic to Parquet files and back, see docs/adr/0099.

files       Parquet files that are whole under their name, or not there; and which of a partition there are
exporting   `export`: what is not in the files yet
importing   `import`: files into a topic, on what `produce` publishes with
"""
