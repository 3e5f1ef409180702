"""Finding the library: what is refused, and what the user is told."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from engines.base import EngineError
from engines.libllama.__main__ import _parser
from engines.libllama.library import _folder
from engines.libllama.machine import Machine, unfit
from engines.libllama.wheels import WHEELS

CONF = Path(__file__).parents[3] / "conf" / "engine"
WHEEL = WHEELS["llamacpp"]


def test_an_absent_wheel_says_what_to_install() -> None:
    absent = replace(WHEEL, distribution="ostinato-no-such-wheel")
    with pytest.raises(EngineError, match=r"pip install 'ostinato-replay\[embedded\]'"):
        _folder(absent)


def test_another_version_is_not_loaded_on_trust() -> None:
    other = replace(WHEEL, distribution="numpy", version="0.0.1")
    with pytest.raises(EngineError, match=r"numpy .* is installed, but only 0\.0\.1 was checked"):
        _folder(other)


FIT = Machine("Linux", "x86_64", ("glibc", "2.36"), frozenset({"avx2", "bmi2", "f16c", "fma"}), (3, 11))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"libc": ("glibc", "2.28")}, ""),
        ({"processor": "aarch64"}, "it is used on Linux x86_64 only, this is Linux aarch64"),
        ({"libc": ("glibc", "2.17")}, "it needs glibc 2.28 or newer, this is glibc 2.17"),
        ({"libc": ("", "")}, "it needs glibc 2.28 or newer, this is another C library"),
        ({"cpu_flags": frozenset({"bmi2", "fma"})}, "it needs a CPU with avx2, f16c"),
        ({"python": (3, 14)}, "it has wheels up to Python 3.13, this is 3.14"),
    ],
)
def test_what_keeps_a_wheel_from_running_is_said_before_it_crashes(change: dict[str, Any], reason: str) -> None:
    assert unfit(WHEELS["ik_llamacpp"], FIT._replace(**change)) == reason


def test_structures_of_an_older_build_are_found_out() -> None:
    """Before October 2026 there was no ``moe_cache_size``: everything behind it lay 8 bytes earlier."""
    try:
        _folder(WHEEL)
    except EngineError as error:
        pytest.skip(str(error))
    code = """
import ctypes
from engines.libllama import api_llamacpp as of
from engines.libllama.api import Api, Structs
from engines.libllama.library import load

class Older(ctypes.Structure):
    _fields_ = tuple(f for f in of.LlamaContextParams._fields_ if f[0] != "moe_cache_size")

api = load("llamacpp")
defaults = {k: v for k, v in of._CONTEXT_DEFAULTS.items() if k != "moe_cache_size"}
Api.__init__(api, api._library, Structs(of.LlamaModelParams, Older, of.LlamaBatch, of._MODEL_DEFAULTS, defaults))
print(api.wrong_defaults())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    if "does not load here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.stdout.startswith("Older.offload_kqv is False, not True"), done.stderr


@pytest.mark.parametrize("name", sorted(WHEELS))
def test_its_settings_start_the_server(name: str) -> None:
    settings: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    values = {"python": "python", "model": "m.gguf", "port": 1, "context": 2, "threads": 3, **settings["options"]}
    command = [part.format_map(values) for part in settings["command"]]
    assert command[:3] == ["python", "-m", "engines.libllama"]
    arguments = _parser().parse_args(command[3:])
    assert arguments.backend == settings["name"] == name
    assert (str(arguments.model), arguments.port, arguments.context, arguments.threads) == ("m.gguf", 1, 2, 3)
