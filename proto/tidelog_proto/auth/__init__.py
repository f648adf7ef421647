"""API keys, SCRAM, names of principals, secrets in files, and limits for unauthenticated connections."""
