"""The native port: requests, answers, and forwarding to other nodes."""
