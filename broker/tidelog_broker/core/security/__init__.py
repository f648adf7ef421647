"""Authentication, permissions and quotas."""
