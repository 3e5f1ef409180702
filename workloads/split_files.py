"""One session file a part of a split."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workloads import store
from workloads.session import WorkloadError
from workloads.split import PRESETS, Sizes, Split, members, split

SIZES = ("development", "screening", "screening_turns", "held_out")


def write_parts(path: Path, options: Mapping[str, Any]) -> Iterator[str]:
    """Write each part of a session file to ``out/<part>.parquet`` and yield lines that say what was done.

    Args:
        options: ``out``, and the sizes: ``preset``, single sizes, or both; ``by`` and ``seed``.

    Raises:
        WorkloadError: a size or file that can't be used.
    """
    sizes = _sizes(options)
    if "out" not in options:
        raise WorkloadError("out= is missing; name a folder for the parts, as in out=splits/")
    header = store.header(path)
    if header.split is not None:
        raise WorkloadError(f"{path}: is the {header.split} part of a split already; split what `prepare` wrote")
    seed, by = options.get("seed", 0), options.get("by", "task")
    decided = split(members(store.read(path)), sizes, by=by, seed=seed)
    for part, chosen in decided.parts.items():
        file = options["out"] / f"{part}.parquet"
        if file.resolve() == path.resolve():
            raise WorkloadError(f"{file}: is the file to split; choose another out=")
        store.write(
            file,
            decided.sessions(part, store.read(path)),
            tokenizer_hash=header.tokenizer_hash,
            vocab_size=header.vocab_size,
            split=part,
        )
        yield f"{file}: {len(chosen):,} sessions{_note(part, decided)}"
    yield (
        f"{header.sessions:,} sessions split by {by} with seed {seed}: {decided.unused:,} not needed,"
        f" {decided.duplicates:,} left out as duplicates of others"
    )


def _note(part: str, decided: Split) -> str:
    if part != "screening":
        return ""
    return f" (of the development sessions, their first {decided.screening_turns} turns)"


def _sizes(options: Mapping[str, Any]) -> Sizes:
    name = options.get("preset")
    if name is not None and name not in PRESETS:
        raise WorkloadError(f"preset={name}: known are {', '.join(PRESETS)}")
    given = {field: options[field] for field in SIZES if field in options}
    return replace(PRESETS[name] if name else Sizes(development=0, held_out=0), **given)
