"""Where partitions should be: moving them by plan, and what their owners advise by themselves."""
