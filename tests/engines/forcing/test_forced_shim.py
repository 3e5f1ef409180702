"""The library's compilation and refusals, and the older batch interface on ik_llama.cpp's own library.

The newer interface is tested with a real server: ``tests/engines/test_llama_server.py``.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engines.base import Answer, EngineError, ForcedRequest, ServerReport
from engines.forcing.compiled import check_dynamic, library
from engines.forcing.self_test import probes
from engines.forcing.shim import ShimForcing
from engines.settings import EngineSettings
from engines.synthetic_moe import SyntheticMoe, write
from workloads.sample_paths import TOKENIZER

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (apt-get install gcc)")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "a cache: with blanks"))
    return tmp_path / "a cache: with blanks"


def settings(**changes: object) -> EngineSettings:
    base = {"name": "e", "label": "E", "dialect": "llamacpp", "forcing": "shim", "context": 64, "command": ["x"]}
    return EngineSettings(**{**base, **changes})  # type: ignore[arg-type]


@needs_compiler
def test_the_library_is_compiled_once(cache: Path) -> None:
    made = library()
    written_ns = made.stat().st_mtime_ns
    assert made.parent == cache / "forcing"
    assert library() == made
    assert made.stat().st_mtime_ns == written_ns


@needs_compiler
def test_a_preload_path_never_holds_what_the_loader_splits_at(cache: Path, tmp_path: Path) -> None:
    force = ShimForcing(settings(), tmp_path)
    environment = force.environment()
    assert not set(environment["LD_PRELOAD"]) & set(" :")
    loaded = subprocess.run(
        ["cat", "/proc/self/maps"], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    assert str(library()) in loaded.stdout
    assert environment["OSTINATO_FORCE_PLAN"] in loaded.stdout
    assert loaded.stderr == ""
    force.close()


def test_without_a_compiler_the_package_to_install_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(EngineError, match="apt-get install gcc"):
        library()


def test_a_compiler_that_fails_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(EngineError, match=r"false could not compile shim\.c: exit 1"):
        library()


@needs_compiler
@pytest.mark.parametrize("flags", [["-static"], []])
def test_a_server_without_a_shared_libllama_is_refused(tmp_path: Path, flags: list[str]) -> None:
    source = tmp_path / "server.c"
    source.write_text("void llama_get_logits_ith(void) {}\nint main(void) { llama_get_logits_ith(); return 0; }\n")
    server = tmp_path / "llama-server"
    subprocess.run(["cc", *flags, "-o", server, source], check=True)
    with pytest.raises(EngineError, match=r"llama-server is a static build.*make llama-server"):
        ShimForcing(settings(command=["{binary}"], binary=str(server)), tmp_path)


@needs_compiler
def test_a_server_that_lacks_a_library_is_not_called_static(tmp_path: Path) -> None:
    (tmp_path / "library.c").write_text("void llama_get_logits_ith(void) {}\n")
    (tmp_path / "server.c").write_text(
        "void llama_get_logits_ith(void);\nint main(void) { llama_get_logits_ith(); return 0; }\n"
    )
    library, server = tmp_path / "libllama.so", tmp_path / "llama-server"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "library.c"], check=True)
    subprocess.run(["cc", "-o", server, tmp_path / "server.c", f"-L{tmp_path}", "-lllama"], check=True)
    check_dynamic(server, {"LD_LIBRARY_PATH": str(tmp_path)})
    check_dynamic(server, {"LD_LIBRARY_PATH": ""})


def test_scripts_and_missing_files_are_judged_when_they_run(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\n")
    check_dynamic(script, {})
    check_dynamic(tmp_path / "absent", {})


@needs_compiler
def test_a_turn_longer_than_the_context_names_the_setting(tmp_path: Path) -> None:
    force = ShimForcing(settings(), tmp_path)
    with pytest.raises(EngineError, match=r"set engine\.context=65 or more") as failure:
        force.arm(ForcedRequest(prompt_ids=(1,) * 60, output_ids=(2,) * 5))
    assert failure.value.kind == "context"
    force.close()


@needs_compiler
def test_a_container_sees_the_library_itself_read_only_and_the_plan(tmp_path: Path) -> None:
    force = ShimForcing(settings(launch="container"), tmp_path)
    made, plan = force.mounts()
    assert (made.writable, plan.writable) == (False, True)
    assert not made.path.is_symlink()
    assert made.path.read_bytes() == library().read_bytes()
    assert force.environment() == {"LD_PRELOAD": str(made.path), "OSTINATO_FORCE_PLAN": str(plan.path)}
    force.close()


@needs_compiler
def test_a_server_that_never_loaded_the_library_is_not_verified(tmp_path: Path) -> None:
    force = ShimForcing(settings(), tmp_path)
    request = ForcedRequest(prompt_ids=(1,), output_ids=(2, 3))
    force.arm(request)
    with pytest.raises(EngineError, match="did not load the forcing library"):
        force.verify(request, Answer(chunks=(), report=ServerReport(generated_tokens=2)))
    force.close()


def test_probes_reach_special_and_partial_ids_and_fit_small_vocabularies() -> None:
    for vocab_size in (8, 300, 4096, 151_936):
        requests = list(probes(vocab_size))
        ids = {id_ for request in requests for id_ in request.prompt_ids + request.output_ids}
        assert all(0 <= id_ < vocab_size for id_ in ids)
        lasts = {request.output_ids[-1] for request in requests}
        assert {0, 1, 2, vocab_size - 1} <= lasts
        assert list(probes(vocab_size)) == requests
    lasts = {request.output_ids[-1] for request in probes(151_936, ends=(151_645, 151_643))}
    assert {151_645, 151_643} <= lasts
    assert any(160 <= id_ < 255 for request in probes(4096) for id_ in request.output_ids[:-1])


# ik_llama.cpp keeps llama_decode(llama_batch), with three integers more in the batch than llama.cpp had.
IK = """
import ctypes, json, sys
from pathlib import Path
from engines.libllama.backend import LibllamaBackend
from engines.libllama.library import load

library, model, prompt, steps = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
api = load("ik_llamacpp")
preloaded = ctypes.CDLL(None)
for name, symbol in (("decode", "llama_decode"), ("logits", "llama_get_logits_ith")):
    bound, function = getattr(api, name), preloaded[symbol]
    function.restype, function.argtypes = bound.restype, bound.argtypes
    setattr(api, name, function)
with LibllamaBackend(api, model, name="ik", context=256, threads=1, batch=32, ubatch=32) as backend:
    ids = [backend.prefill(prompt).next_id]
    while len(ids) < steps:
        ids.append(backend.step(ids[-1]))
print(json.dumps(ids))
"""


@needs_compiler
@pytest.mark.skipif(
    importlib.util.find_spec("ik_llama_cpp") is None, reason="ik-llama-cpp-python is not installed (extra: embedded)"
)
def test_the_older_batch_interface_is_forced_and_observed(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("ik_llama_cpp")
    assert spec is not None
    assert spec.submodule_search_locations
    ik = Path(spec.submodule_search_locations[0]) / "lib" / "libllama.so"
    shape = SyntheticMoe(layers=1, experts=4, experts_per_token=2, hidden=64, expert_width=32, heads=2, kv_heads=1)
    write(shape, tokenizer=TOKENIZER, safetensors=None, gguf=tmp_path / "tiny.gguf")
    request = ForcedRequest(prompt_ids=tuple(range(100, 170)), output_ids=(900, 185, 266, 17, 4000, 1))
    force = ShimForcing(settings(context=256), tmp_path)
    force.arm(request)
    ran = subprocess.run(
        [sys.executable, "-c", IK, ik, tmp_path / "tiny.gguf", json.dumps(request.prompt_ids), "6"],
        env=os.environ | force.environment(),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert tuple(json.loads(ran.stdout.splitlines()[-1])) == request.output_ids
    verified_by, stamps = force.verify(request, Answer(chunks=(), report=ServerReport(generated_tokens=6)))
    assert verified_by == "shim"
    assert stamps is not None
    assert list(stamps) == sorted(set(stamps))
    force.close()
