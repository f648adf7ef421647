"""Administration of topics, records and nodes."""
