"""How fast a model is loaded, beside how fast its files can be read, and how much memory that takes.

    python benchmarks/load_rate.py --model models/qwen3-30b-a3b
    python benchmarks/load_rate.py --gib 8 --folder /mnt/disk/scratch --cold

Without ``--model`` a random model is written to ``--folder`` and removed at the end. ``read`` takes every byte of the
files through one small buffer a thread; ``read into memory`` keeps them in fresh memory, as the loader must.
``--cold`` drops the files from the page cache before each (needs no root). Each is done in a process of its own. The
loader must reach 70 % of ``read into memory`` or be held up by the disk, and its peak memory must stay within 3 GiB
of the model's size.
"""

import argparse
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

PIECE = 8 << 20
WAYS = ("read", "read into memory", "load")


def files_of(model: Path) -> list[Path]:
    return [model] if model.is_file() else sorted(model.glob("*.safetensors"))


def read(model: Path, *, keep: bool) -> int:
    """Read all files; return the bytes."""
    files = files_of(model)
    sizes = [file.stat().st_size for file in files]
    memory = mmap.mmap(-1, sum(sizes)) if keep else None
    if memory is not None:
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = memoryview(memory) if memory is not None else None
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open("rb")) for file in files]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        jobs = [(i, at) for i, size in enumerate(sizes) for at in range(0, size, 16 * PIECE)]

        def take(job: tuple[int, int]) -> int:
            i, begin = job
            buffer = bytearray(PIECE) if whole is None else None
            end = min(begin + 16 * PIECE, sizes[i])
            for at in range(begin, end, PIECE):
                size = min(PIECE, end - at)
                if whole is None:
                    assert buffer is not None
                    os.preadv(opened[i].fileno(), [memoryview(buffer)[:size]], at)
                else:
                    os.preadv(opened[i].fileno(), [whole[starts[i] + at : starts[i] + at + size]], at)
            return end - begin

        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            return sum(pool.map(take, jobs))


def one(way: str, model: Path) -> None:
    """Do it and print what it took."""
    if way == "load":
        import torch

        from engines.ostinato.loading import load_model

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        kept = load_model(model, device=torch.device("cpu"), dtype="bfloat16")
        seconds = time.perf_counter() - began
        size = sum(file.stat().st_size for file in files_of(model))
        assert kept.store.nbytes
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        size = read(model, keep=way != "read")
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"bytes": size, "seconds": seconds, "grown": 1024 * (peak - before)}))


def forget(model: Path) -> None:
    """Drop the files from the page cache."""
    for file in files_of(model):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model folder or GGUF file")
    parser.add_argument("--gib", type=float, default=2.0, help="of the random model (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where to write it (the system's temporary folder)")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not from the page cache")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        one(args.way, args.model)
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        model = args.model or random_model(Path(scratch), args.gib)
        rates: dict[str, float] = {}
        for way in WAYS:
            for _ in range(args.rounds):
                if args.cold:
                    forget(model)
                command = [sys.executable, __file__, "--way", way, "--model", str(model)]
                found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                rate = found["bytes"] / found["seconds"] / 1e9
                rates[way] = max(rate, rates.get(way, 0.0))
                print(
                    f"{way:17} {found['seconds']:7.2f} s {rate:7.2f} GB/s   peak memory "
                    f"{found['grown'] / 2**30:.2f} GiB for {found['bytes'] / 2**30:.2f} GiB",
                    flush=True,
                )
    print(f"load / read into memory: {rates['load'] / rates['read into memory']:.0%}")
    print(f"load / read:             {rates['load'] / rates['read']:.0%}")
    return 0


def random_model(folder: Path, gib: float) -> Path:
    from engines.synthetic_moe import SyntheticMoe, write
    from workloads.sample_paths import TOKENIZER

    layer = 2 * 64 * 3 * 2048 * 768
    spec = SyntheticMoe(
        layers=max(1, round(gib * 2**30 / layer)), experts=64, experts_per_token=8, hidden=2048, expert_width=768,
        heads=16, kv_heads=4, head_dim=128,
    )  # fmt: skip
    write(spec, tokenizer=TOKENIZER, safetensors=folder / "model", gguf=None)
    return folder / "model"


if __name__ == "__main__":
    sys.exit(main())
