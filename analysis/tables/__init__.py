"""The report's tables: one module a group, each from a ``Summary`` and nothing else."""
