"""`tidelog certs`: a small certificate authority and its files."""
