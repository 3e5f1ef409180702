"""Drives an engine with a workload, turn by turn."""
