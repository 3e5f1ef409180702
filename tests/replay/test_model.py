"""Where a model comes from, and what identifies it."""

import json
import threading
from pathlib import Path

import pytest

from engines.base import EngineError
from engines.synthetic_moe import SyntheticMoe
from replay.model import ModelSettings, prepare
from workloads.sample_paths import TOKENIZER

SMALL = SyntheticMoe(
    layers=1, experts=4, experts_per_token=2, hidden=32, expert_width=16, heads=2, kv_heads=1, head_dim=16
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def quiet(_text: str) -> None: ...


def test_a_synthetic_model_is_made_once_in_the_format_that_is_asked_for() -> None:
    settings = ModelSettings(name="small", synthetic=SMALL)
    made = prepare(settings, "gguf", quiet)
    assert made.file
    assert made.file.read_bytes()[:4] == b"GGUF"
    stamp = made.file.stat().st_mtime_ns
    assert prepare(settings, "gguf", quiet) == made
    assert made.file.stat().st_mtime_ns == stamp
    assert not (made.file.parent / "safetensors").exists()


def test_both_formats_of_one_model_have_one_hash_and_another_seed_another() -> None:
    settings = ModelSettings(name="small", synthetic=SMALL)
    gguf, folder = prepare(settings, "gguf", quiet), prepare(settings, "safetensors", quiet)
    assert gguf.hash == folder.hash
    assert folder.file
    assert json.loads((folder.file / "config.json").read_text())["vocab_size"] == folder.vocab_size
    other = SyntheticMoe(**{**SMALL.__dict__, "seed": 1})
    assert prepare(ModelSettings(name="small", synthetic=other), "none", quiet).hash != gguf.hash


def test_two_runs_at_once_make_it_one_after_the_other() -> None:
    settings = ModelSettings(name="small", synthetic=SMALL)
    made: list[Path | None] = []
    threads = [threading.Thread(target=lambda: made.append(prepare(settings, "gguf", quiet).file)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    assert len(set(made)) == 1
    assert made[0]
    assert made[0].is_file()


def test_an_engine_that_loads_nothing_gets_nothing(cache: Path) -> None:
    assert prepare(ModelSettings(name="small", synthetic=SMALL), "none", quiet).file is None
    assert not cache.exists()


def test_own_files_win_over_the_synthetic_model(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 7}')
    own = ModelSettings(name="own", path=str(folder), tokenizer=str(TOKENIZER), synthetic=SMALL)
    model = prepare(own, "safetensors", quiet)
    assert model.file == folder
    assert model.vocab_size == 7
    assert model.tokenizer == TOKENIZER


def test_a_missing_file_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nowhere: no such file or folder; correct model\.path"):
        prepare(ModelSettings(name="own", path=str(tmp_path / "nowhere")), "safetensors", quiet)


def test_a_format_that_is_not_there_names_the_setting_that_would_give_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"set model\.gguf="):
        prepare(ModelSettings(name="own", path=str(tmp_path), tokenizer=str(TOKENIZER)), "gguf", quiet)


def test_own_weights_are_never_paired_with_the_bundled_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"set model\.tokenizer"):
        prepare(ModelSettings(name="own", path=str(tmp_path)), "safetensors", quiet)


def test_a_folder_without_a_tokenizer_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no tokenizer\.json in it; correct model\.tokenizer"):
        prepare(ModelSettings(name="own", tokenizer=str(tmp_path)), "none", quiet)


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "file"))
    with pytest.raises(EngineError, match="OSTINATO_CACHE"):
        prepare(ModelSettings(name="small", synthetic=SMALL), "gguf", quiet)
