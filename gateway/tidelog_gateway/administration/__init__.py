"""Routes for administrators: quotas, and whether a rule allows something."""
