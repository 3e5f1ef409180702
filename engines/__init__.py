"""The systems under test: how they are started, forced, asked and timed."""
