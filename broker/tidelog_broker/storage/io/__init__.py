"""Access to the operating system: files, threads, and their errors."""
