"""The socket between the parent and each worker: frames, and the worker's side."""
