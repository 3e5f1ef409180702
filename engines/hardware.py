"""A machine as far as engines are told about it (the ``hardware`` group in ``conf/``)."""

from dataclasses import dataclass


@dataclass
class HardwareSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else.

    Nothing reads it but the files in ``conf/engine``, as ``${hardware.threads}`` and its like: what an engine is
    started with stands in its own settings.
    """

    name: str = "this_machine"
    gpus: str | None = "all"
    """``all``, or device numbers as in ``0,1``; None for none. For engines that need one."""
    gpu_count: int = 1
    """How many that is, for engines that split a model over them by number."""
    threads: int = 1
    """Physical cores to compute on."""
    cpuset_cpus: str | None = None
    """The cores themselves, as in ``0-47``; None for any."""
    cpuset_mems: str | None = None
    """NUMA nodes whose memory may be taken, as in ``0,1``; None for any."""
    numa_nodes: int = 1
    """Sockets, for engines with a pool of threads on each."""
    numa: str = "distribute"
    """llama.cpp's ``--numa``: ``distribute`` spreads threads over the nodes, ``isolate`` stays on one."""
    memory: str | None = None
    """Limit of a container, as in ``480g``; None for none."""
