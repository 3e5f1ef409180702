"""Ostinato: a CPU–GPU engine for mixture-of-experts models. Knows nothing of the harness."""
