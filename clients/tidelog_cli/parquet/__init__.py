"""`tidelog export` and `tidelog import`: topics to Parquet files and back, see docs/adr/0099.

Modules:

files       atomic writing of Parquet files, and detection of exported offsets
exporting   `export`: writes records that are not in the files yet
importing   `import`: publishes files to a topic, with the code of `produce`
"""
