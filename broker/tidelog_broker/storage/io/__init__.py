"""The seam to the operating system: files, threads, and what can go wrong with them."""
