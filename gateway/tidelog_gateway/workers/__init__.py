"""Several processes behind one port: the parent that runs them, and each worker's side."""
