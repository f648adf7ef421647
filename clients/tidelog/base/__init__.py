"""Helpers of every room of the client; they import none of the rooms."""
