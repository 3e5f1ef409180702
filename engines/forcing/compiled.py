"""Compiles the forcing library at its first use and checks that a server can be forced with it."""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from engines.base import EngineError

SOURCE = Path(__file__).with_name("shim.c")
_FLAGS = ("-O2", "-std=gnu11", "-shared", "-fPIC")
_HOOK = "llama_get_logits_ith"


def library() -> Path:
    """The compiled library, from ``$OSTINATO_CACHE`` (default ``.cache``) or made there now.

    Raises:
        EngineError: no C compiler, or it failed.
    """
    compiler = _compiler()
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join((*_FLAGS, platform.machine())).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("OSTINATO_CACHE") or ".cache").absolute() / "forcing"
    target = folder / f"{key}.so"
    if target.is_file():
        return target
    if compiler is None:
        raise EngineError(
            "engine.forcing=shim compiles a small C library and there is no C compiler: apt-get install gcc"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / target.name
            command = [compiler, *_FLAGS, "-o", str(made), str(SOURCE), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 our own source
            if done.returncode:
                first = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[0]
                raise EngineError(
                    f"{compiler} could not compile {SOURCE.name}: {first}; apt-get install gcc libc6-dev, or set CC"
                )
            made.replace(target)
    except OSError as error:
        raise EngineError(
            f"{error.filename or folder}: {error.strerror}; set OSTINATO_CACHE to a folder that can be written"
        ) from error
    return target


def _compiler() -> str | None:
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in names if (path := shutil.which(name))), None)


def check_dynamic(binary: Path, variables: Mapping[str, str]) -> None:
    """Refuse a server whose libllama can't be reached from outside.

    Scripts pass, and what can't be loaded: the server's own start says more about it.

    Args:
        variables: of the server's environment, where its libraries may depend on them.

    Raises:
        EngineError: a static build, or one whose libraries bind their own functions first (``-Bsymbolic``).
    """
    try:
        with binary.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                return
    except OSError:
        return
    paths = _libraries(binary, variables)
    if paths is None:
        return
    if not any(path.name.startswith("libllama.so") for path in paths):
        raise EngineError(
            f"{binary} is a static build (it loads no libllama.so), so tokens can't be forced from outside; "
            "use one built with BUILD_SHARED_LIBS=ON (`make llama-server` builds it), or another engine.forcing"
        )
    callers = [binary, *(path for path in paths if not path.name.startswith("libllama.so"))]
    if not any(_names(path, _HOOK) for path in callers):
        raise EngineError(
            f"{binary} never calls {_HOOK} across libraries, so tokens can't be forced from outside; "
            "use a build of llama-server with a shared libllama (`make llama-server`)"
        )


def _libraries(binary: Path, variables: Mapping[str, str]) -> list[Path] | None:
    """What the loader would load, as ``ldd`` finds it; nothing for a static program, None when some is missing."""
    if b"/ld-linux" not in binary.read_bytes() and b"/ld-musl" not in binary.read_bytes():
        return []  # no loader: running it would run the program itself
    traced = {**os.environ, **variables, "LD_TRACE_LOADED_OBJECTS": "1"}
    ran = subprocess.run([binary], env=traced, capture_output=True, text=True, check=False)  # noqa: S603
    if ran.returncode or "not found" in ran.stdout:
        return None
    found = (line.partition("=>")[2].split() for line in ran.stdout.splitlines())
    return [Path(words[0]) for words in found if words and words[0].startswith("/")]


def _names(path: Path, symbol: str) -> bool:
    return b"\0" + symbol.encode() + b"\0" in path.read_bytes()
