"""``engines doctor``: whether this machine can run an engine, and what would make its numbers doubtful."""
