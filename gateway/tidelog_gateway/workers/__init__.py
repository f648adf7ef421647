"""Several processes for one port: their parent, and each worker's side."""
