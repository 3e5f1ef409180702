"""Tiny models of every family, their plain logits, and engines over them."""

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # families.py, for all test modules beside it


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``tiny(family, **changes)``: a tiny model, made once."""
    pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")
    from families import Tiny

    made: dict[str, Tiny] = {}

    def get(family: str, **changes: Any) -> Tiny:
        key = f"{family}{sorted(changes.items())}"
        if key not in made:
            made[key] = Tiny(family, tmp_path_factory.mktemp(family), **changes)
        return made[key]

    return get


@pytest.fixture(scope="module")
def opened() -> Iterator[Callable[..., Any]]:
    """``opened(folder, **options)``: an engine on one CPU thread, the same one for the same arguments."""
    from engines.ostinato.assembly import Options, open_engine

    engines: dict[str, Any] = {}

    def get(folder: Path, **options: Any) -> Any:
        key = f"{folder} {options}"
        if key not in engines:
            settings: dict[str, Any] = {"context": 1024, "chunk": 32, "threads": 1, "device": "cpu"} | options
            engines[key] = open_engine(Options(model=folder, **settings))
        return engines[key]

    yield get
    for engine in engines.values():
        engine.groups[0].cpu.close()  # with the threads of all that share them


@pytest.fixture
def on_gpu() -> Iterator[Callable[..., Any]]:
    """``on_gpu(folder, **options)``: an engine on the first GPU; all are closed when the test ends."""
    import torch

    from engines.ostinato.assembly import Options, open_engine

    engines: list[Any] = []

    def get(folder: Path, **options: Any) -> Any:
        settings: dict[str, Any] = {"context": 2048, "chunk": 32, "threads": 4, "compiled": "none"}
        settings |= {"device": "cuda:0", "most_output": 2048}
        engines.append(open_engine(Options(model=folder, **(settings | options))))
        return engines[-1]

    yield get
    for engine in engines:
        if engine.graph is not None:
            engine.graph.service.stop()
        engine.groups[0].cpu.close()
        for group in engine.groups:
            group.pool.store.close()
    engines.clear()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
