"""The model that every engine of a run serves: the user's files, or a synthetic one made once and kept."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines import synthetic_moe
from engines.base import EngineError
from engines.synthetic_moe import SyntheticMoe
from workloads.sample_paths import TOKENIZER

Ticker = Callable[[str], None]


@dataclass
class ModelSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    name: str
    """Shown in reports."""
    path: str | None = None
    """A Hugging Face model folder, for engines that load safetensors."""
    gguf: str | None = None
    """A GGUF file of the same weights, for engines that load GGUF."""
    tokenizer: str | None = None
    """A folder with tokenizer.json and chat template; else the model folder's, else the bundled one."""
    synthetic: SyntheticMoe | None = None
    """Made in the cache when neither ``path`` nor ``gguf`` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    hash: str | None
    """The same for every engine that serves these weights, whichever file it loads."""
    tokenizer: Path
    vocab_size: int | None
    """None where the files do not say."""
    file: Path | None
    """What the engine loads; None when it loads nothing of ours."""


def prepare(settings: ModelSettings, model_format: str, ticker: Ticker) -> Model:
    """Find the model in the format an engine loads (``safetensors``, ``gguf`` or ``none``); make a synthetic one.

    Raises:
        EngineError: nothing in that format, a missing file, no room to write.
    """
    folder, gguf = _existing(settings.path, "model.path"), _existing(settings.gguf, "model.gguf")
    tokenizer = _tokenizer(settings, folder)
    if folder or gguf:
        by_format = {"safetensors": folder, "gguf": gguf, "none": None}
        if model_format != "none" and by_format.get(model_format) is None:
            setting = {"gguf": "model.gguf=<file.gguf>"}.get(model_format, "model.path=<Hugging Face folder>")
            raise EngineError(f"this engine loads {model_format}, the model has no such file; set {setting}")
        return Model(
            name=settings.name,
            hash=_files_hash(folder, gguf),
            tokenizer=tokenizer,
            vocab_size=_vocab_size(folder),
            file=by_format.get(model_format),
        )
    spec = settings.synthetic
    if spec is None and model_format != "none":
        raise EngineError("no model; set model.path, model.gguf or model.synthetic, or choose model=tiny")
    name_hash = _spec_hash(spec, tokenizer) if spec else None
    return Model(
        name=settings.name,
        hash=name_hash,
        tokenizer=tokenizer,
        vocab_size=spec.vocab_size if spec else None,
        file=_made(spec, model_format, tokenizer, cache() / "models" / str(name_hash), ticker)
        if spec and model_format != "none"
        else None,
    )


def cache() -> Path:
    """Where made models are kept: ``$OSTINATO_CACHE``, else ``.cache`` in the working directory."""
    return Path(os.environ.get("OSTINATO_CACHE") or ".cache").absolute()


def _made(spec: SyntheticMoe, model_format: str, tokenizer: Path, folder: Path, ticker: Ticker) -> Path:
    target = folder / {"safetensors": "safetensors", "gguf": "model.gguf"}[model_format]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ticker(f"waiting for another run that makes {folder.name}")
        with _locked(folder / ".lock"):
            if not target.exists():
                synthetic_moe.write(
                    spec,
                    tokenizer=tokenizer,
                    safetensors=target if model_format == "safetensors" else None,
                    gguf=target if model_format == "gguf" else None,
                    progress=lambda share: ticker(f"making the synthetic model ({model_format}) {share:.0%}"),
                )
    except OSError as error:
        raise EngineError(
            f"{error.filename or folder}: {error.strerror}; free some space or set OSTINATO_CACHE to another folder"
        ) from error
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, over processes; the kernel gives the lock back when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _existing(path: str | None, setting: str) -> Path | None:
    if path is None:
        return None
    if not Path(path).exists():
        raise EngineError(f"{path}: no such file or folder; correct {setting}")
    return Path(path).absolute()


def _tokenizer(settings: ModelSettings, folder: Path | None) -> Path:
    if settings.tokenizer is not None:
        chosen = Path(settings.tokenizer).absolute()
        if not (chosen / "tokenizer.json").is_file():
            raise EngineError(f"{settings.tokenizer}: no tokenizer.json in it; correct model.tokenizer")
        return chosen
    if folder and (folder / "tokenizer.json").is_file():
        return folder
    if folder or settings.gguf:
        raise EngineError("the model's tokenizer is not known; set model.tokenizer to its Hugging Face folder")
    return TOKENIZER


def _spec_hash(spec: SyntheticMoe, tokenizer: Path) -> str:
    text = json.dumps(asdict(spec), sort_keys=True).encode()
    return hashlib.sha256(text + (tokenizer / "tokenizer.json").read_bytes()).hexdigest()[:16]


def _files_hash(folder: Path | None, gguf: Path | None) -> str:
    """Configuration and file sizes: reading every weight would take minutes."""
    digest = hashlib.sha256()
    for root in (folder, gguf):
        for path in sorted(root.rglob("*") if root and root.is_dir() else [root] if root else []):
            if path.is_file():
                digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    if folder and (folder / "config.json").is_file():
        digest.update((folder / "config.json").read_bytes())
    return digest.hexdigest()[:16]


def _vocab_size(folder: Path | None) -> int | None:
    try:
        config: dict[str, Any] = json.loads(((folder or Path()) / "config.json").read_bytes()) if folder else {}
    except (OSError, json.JSONDecodeError):
        return None
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    return size if isinstance(size, int) else None
