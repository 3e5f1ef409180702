"""The checked schema of a run (Hydra).

OmegaConf takes plain dataclasses only: no frozen ones nested in others, no ``Literal``, no tuples. So the groups are
plain dataclasses, each kept beside the code that reads it, and everything built from them is frozen.
"""
