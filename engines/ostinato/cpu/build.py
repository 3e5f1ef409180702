"""Compiles the kernels with the machine's own compiler, once, into a cache folder."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
_COMMON = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=default", "-pthread", "-fno-math-errno", "-ffp-contract=fast")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c", "-mprefer-vector-width=512")
_FLAGS = {
    "isa_avx2": ("-mavx2", "-mfma", "-mf16c"),
    "isa_avx512": _AVX512,
    "isa_avx512bf16": (*_AVX512, "-mavx512bf16"),
    "isa_amx": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}


class BuildError(Exception):
    """The kernels can't be compiled here; the message says why."""


def cache_folder() -> Path:
    """``$OSTINATO_CACHE``, else the user's cache."""
    if chosen := os.environ.get("OSTINATO_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "ostinato"


def build(*, extra: tuple[str, ...] = (), folder: Path | None = None, sources: Path = SOURCES) -> Path:
    """The compiled library, from the cache or made there now; many processes may ask at once.

    Args:
        extra: flags of every file and of the link, such as ``-fsanitize=address``.
        folder: default :func:`cache_folder`.
        sources: a folder of ``.cpp`` and ``.h``.

    Raises:
        BuildError: not Linux, no C++ compiler, it failed, or the folder can't be written.
    """
    if sys.platform != "linux":
        raise BuildError(f"the pool needs Linux, this is {sys.platform}")
    compiler = _compiler()
    if compiler is None:
        raise BuildError("no C++ compiler: apt-get install g++, or set CXX")
    files = sorted(sources.glob("*.cpp"))
    folder = (folder or cache_folder()) / "cpu"
    target = folder / f"{_key(compiler, extra, sources)}.so"
    if target.is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as threads:
                objects = list(threads.map(lambda source: _compile(compiler, source, Path(scratch), extra), files))
            made = Path(scratch) / target.name
            _run([compiler, "-shared", "-pthread", *extra, "-o", str(made), *map(str, objects)])
            made.replace(target)  # whoever is last replaces the same library by itself
    except OSError as error:
        raise BuildError(
            f"{error.filename or folder}: {error.strerror}; set OSTINATO_CACHE to a folder that can be written"
        ) from error
    return target


def _compiler() -> str | None:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def _key(compiler: str, extra: tuple[str, ...], sources: Path) -> str:
    said = subprocess.run([compiler, "--version"], capture_output=True, check=False)  # noqa: S603
    digest = hashlib.sha256(said.stdout + repr((_COMMON, _FLAGS, extra, platform.machine())).encode())
    for path in sorted(sources.iterdir()):
        if path.suffix in {".cpp", ".h"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, source: Path, scratch: Path, extra: tuple[str, ...]) -> Path:
    made = scratch / f"{source.stem}.o"
    flags = _FLAGS.get(source.stem, ()) if platform.machine() == "x86_64" else ()
    command = [compiler, *_COMMON, *extra, "-c", "-o", str(made), str(source)]
    if flags and _accepts(compiler, flags):  # else the file compiles to "not in this build"
        command[1:1] = flags
    _run(command)
    return made


def _accepts(compiler: str, flags: tuple[str, ...]) -> bool:
    command = [compiler, *flags, "-x", "c++", "-fsyntax-only", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 our own sources
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else f"exit {done.returncode}")
        raise BuildError(f"{command[0]} failed: {first}")
