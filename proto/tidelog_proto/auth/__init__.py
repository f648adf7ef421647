"""API keys, SCRAM, principal names, secret files, and limits for unauthenticated connections."""
