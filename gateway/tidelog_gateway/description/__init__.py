"""The API's description: `/openapi.json` and `/docs`."""
