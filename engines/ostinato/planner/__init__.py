"""Which experts stay on the GPUs, and what the cost model says of it. NumPy only."""
