"""The description of the API: what `/openapi.json` and `/docs` serve."""
