"""The native port: requests in, answers out, and what is handed on to other nodes."""
