"""How fast experts are computed on the CPU: GB/s, ms an expert, and the share of what the same cores can read.

    python benchmarks/cpu_experts.py
    python benchmarks/cpu_experts.py --threads 15 --experts 256 --tokens 1 4 8 32 128 --dtype bfloat16

``together``: all experts in one call, each with ``--tokens`` tokens, as in a prefill. ``decode``: one token and
``--routes`` experts a request, written to the service's mailbox and awaited in C. ``empty request``: one for a layer
that is not there, which leaves the hand-over. Experts lie in one buffer larger than the caches and are taken in a
seeded random order. ``torch`` does the same with ``torch.nn.functional.linear``; ``kt-kernel`` with that package,
where it is installed. The read rate is that of the same cores, pinned, over the same buffer.
"""

import argparse
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from engines.ostinato.cpu.build import build
from engines.ostinato.cpu.cores import choose_cores
from engines.ostinato.cpu.library import MAILBOX_HEADER, CpuExperts, Mailbox
from engines.ostinato.cpu.native import X_DTYPES, NativeCpuExperts
from engines.ostinato.cpu.torch_path import TorchCpuExperts
from engines.ostinato.expert_layout import ExpertLayout

PROBE = r"""
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }

// Bytes a second of `threads` pinned threads that each read their share of the buffer, again and again.
extern "C" double probe_read(const char* data, int64_t size, int threads, const int* cores, double seconds) {
  std::atomic<int> ready{0};
  std::atomic<int64_t> read{0};
  std::atomic<bool> go{false}, stop{false};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; t++) pool.emplace_back([&, t] {
    cpu_set_t set; CPU_ZERO(&set); CPU_SET(cores[t], &set); pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    const int64_t share = size / threads / 4096 * 4096;
    const uint64_t* words = (const uint64_t*)(data + t * share);
    uint64_t sum[8] = {};
    ready++;
    while (!go) sched_yield();
    while (!stop) for (int64_t at = 0; at < share / 8 && !stop; at += 32768) {
      const int64_t end = at + 32768 < share / 8 ? at + 32768 : share / 8;
      for (int64_t i = at; i < end; i += 8) {
        __builtin_prefetch(words + i + 256);
        for (int j = 0; j < 8; j++) sum[j] ^= words[i + j];
      }
      read.fetch_add(8 * (end - at), std::memory_order_relaxed);
    }
    volatile uint64_t kept = sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7]; (void)kept;
  });
  while (ready < threads) sched_yield();
  go = true;
  const double began = now();
  const int64_t before = read;
  timespec nap = {(time_t)seconds, (long)(1e9 * (seconds - (int64_t)seconds))};
  nanosleep(&nap, nullptr);
  const double rate = (read - before) / (now() - began);
  stop = true;
  for (auto& thread : pool) thread.join();
  return rate;
}

// Nanoseconds from writing a request's sequence to seeing it answered, for each of `count`.
extern "C" void probe_ask(uint32_t* request, uint32_t* answer, uint32_t first, int count, int64_t* taken) {
  for (int i = 0; i < count; i++) {
    const double began = now();
    __atomic_store_n(request, first + i, __ATOMIC_RELEASE);
    for (int spins = 0; __atomic_load_n(answer, __ATOMIC_ACQUIRE) != first + i; spins++)
      if (spins > 100000) sched_yield();
    taken[i] = (int64_t)(1e9 * (now() - began));
  }
}
"""


class Experts:
    """``count`` copies of one random expert, 64-byte aligned."""

    def __init__(self, layout: ExpertLayout, count: int):
        one = torch.empty(layout.nbytes, dtype=torch.uint8)
        if layout.dtype == "mxfp4":
            one.random_(0, 256)
            for name, (offset, nbytes) in layout.parts.items():
                if name.endswith("scales"):
                    one[offset : offset + nbytes].random_(118, 124)
        else:
            dtype = X_DTYPES[layout.dtype]
            one = (0.02 * torch.randn(layout.nbytes // dtype.itemsize)).to(dtype).view(torch.uint8)
        self.held = torch.empty(count * layout.nbytes + 64, dtype=torch.uint8)
        self.first = -(-self.held.data_ptr() // 64) * 64
        offset = self.first - self.held.data_ptr()
        for i in range(count):
            self.held[offset + i * layout.nbytes :][: layout.nbytes] = one
        self.addresses = self.first + layout.nbytes * np.arange(count, dtype=np.int64)
        self.nbytes = count * layout.nbytes


def repeated(call: Callable[[], object], seconds: float) -> float:
    """Median seconds of a call, after one that doesn't count."""
    call()
    end, taken = time.perf_counter() + seconds, []
    while time.perf_counter() < end or len(taken) < 3:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken)


def together(cpu: CpuExperts, held: Experts, tokens: int, seconds: float) -> float:
    """Seconds an expert."""
    order = np.random.default_rng(0).permutation(held.addresses)
    starts = (tokens * np.arange(len(order) + 1)).astype(np.int32)
    rows = np.tile(np.arange(tokens, dtype=np.int32), len(order))
    weights = np.full(len(rows), 0.1, np.float32)
    x_TD = torch.randn(tokens, cpu.layout.hidden).to(X_DTYPES[cpu.layout.dtype])
    out_TD = torch.empty(tokens, cpu.layout.hidden)
    return repeated(lambda: cpu.compute(order, starts, rows, weights, x_TD, out_TD), seconds) / len(order)


def decode(
    cpu: NativeCpuExperts, probe: ctypes.CDLL, held: Experts, routes: int, seconds: float
) -> tuple[float, float]:
    """``(seconds an expert, of a request for nothing)``."""
    layout = cpu.layout
    memory = np.zeros(2 * (MAILBOX_HEADER + 4 * layout.hidden) + 128, np.uint8)
    request = -(-memory.ctypes.data // 64) * 64
    answer = -(-(request + MAILBOX_HEADER + 4 * layout.hidden) // 64) * 64
    words, floats = (ctypes.c_int32 * 64).from_address(request), (ctypes.c_float * 64).from_address(request)
    x_D = torch.randn(layout.hidden).to(X_DTYPES[layout.dtype])
    ctypes.memmove(request + MAILBOX_HEADER, x_D.data_ptr(), x_D.nbytes)
    random = np.random.default_rng(0)
    service = cpu.service(held.addresses[None], [Mailbox(request, answer)])
    service.start()
    taken = (ctypes.c_int64 * 10_000)()
    end, sequence, spent = time.perf_counter() + seconds, 0, []
    while time.perf_counter() < end:
        words[1], words[2] = 0, routes
        words[4 : 4 + routes] = random.choice(len(held.addresses), routes, replace=False).tolist()
        floats[20 : 20 + routes] = [1.0] * routes
        sequence += 1
        probe.probe_ask(request, answer, sequence, 1, taken)
        spent.append(taken[0])
    words[1] = 1
    probe.probe_ask(request, answer, sequence + 1, len(taken), taken)
    service.stop()
    return median(spent) * 1e-9 / routes, float(np.median(np.array(taken))) * 1e-9


def kt_kernel(layout: ExpertLayout, threads: int, tokens: Sequence[int], seconds: float) -> dict[int, float]:
    """Tokens an expert → seconds an expert, by kt-kernel's BF16 kernels over 32 experts; empty when it isn't here."""
    try:
        from kt_kernel import KTMoEWrapper
    except ImportError as error:
        print(f"kt-kernel: not here ({error})")
        return {}
    from safetensors.torch import save_file

    if not torch.cuda.is_available():  # it asks for pinned buffers, which need a GPU
        for name in ("zeros", "full", "empty", "ones"):
            made = getattr(torch, name)
            setattr(torch, name, lambda *a, made=made, **k: made(*a, **{**k, "pin_memory": False}))
    experts, hidden, width = 32, layout.hidden, layout.width
    with tempfile.TemporaryDirectory() as folder:
        names = (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width)))
        weights = {
            f"model.layers.0.mlp.experts.{expert}.{name}_proj.weight": (0.02 * torch.randn(shape)).bfloat16()
            for expert in range(experts)
            for name, shape in names
        }
        save_file(weights, str(Path(folder) / "model.safetensors"))
        wrapper = KTMoEWrapper(
            layer_idx=0, num_experts=experts, num_experts_per_tok=experts, hidden_size=hidden,
            moe_intermediate_size=width, gpu_experts_mask=torch.zeros(experts, dtype=torch.bool),
            cpuinfer_threads=threads, threadpool_count=1, weight_path=folder, chunked_prefill_size=max(tokens),
            method="BF16",
        )  # fmt: skip
        wrapper.load_weights(torch.arange(experts))
    found = {}
    for count in tokens:
        x_TD, out_TD = torch.randn(count, hidden).bfloat16(), torch.empty(count, hidden, dtype=torch.bfloat16)
        ids = torch.arange(experts).repeat(count, 1).contiguous()
        mix, size = torch.full(ids.shape, 0.1), torch.tensor([count], dtype=torch.int32)

        def call(size=size, ids=ids, mix=mix, x_TD=x_TD, out_TD=out_TD) -> None:  # type: ignore[no-untyped-def]
            task = wrapper.moe.forward_task(
                size.data_ptr(), experts, ids.data_ptr(), mix.data_ptr(), x_TD.data_ptr(), out_TD.data_ptr(), False
            )
            wrapper.cpu_infer.submit(task)
            wrapper.cpu_infer.sync()

        found[count] = repeated(call, seconds) / experts
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=max(1, cores - 1))
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 8, 32, 128], help="of each expert")
    parser.add_argument("--routes", type=int, nargs="+", default=[1, 2, 4], help="of a decode step")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(X_DTYPES))
    parser.add_argument("--isa", nargs="+", default=[None], help="instruction sets; the processor's best")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each line")
    parser.add_argument("--without", nargs="*", default=[], choices=["torch", "kt-kernel"])
    asked = parser.parse_args(arguments)

    layout = ExpertLayout(asked.hidden, asked.width, asked.dtype)
    held = Experts(layout, asked.experts)
    chosen = choose_cores(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "probe.cpp").write_text(PROBE)
        probe = ctypes.CDLL(str(build(sources=Path(folder))))
    probe.probe_read.restype = ctypes.c_double
    probe.probe_read.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_double)
    probe.probe_ask.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p)
    pinned = (ctypes.c_int * len(chosen))(*chosen)
    rate = probe.probe_read(held.first, held.nbytes, len(chosen), pinned, max(1.0, asked.seconds))
    print(
        f"{asked.experts} experts of {layout.nbytes / 1e6:.2f} MB ({asked.dtype}, hidden {asked.hidden}, width "
        f"{asked.width}), {asked.threads} threads on cores {chosen}; they read {rate / 1e9:.1f} GB/s"
    )

    def row(name: str, what: str, seconds: float) -> None:
        speed, ms = layout.nbytes / seconds, seconds * 1e3
        print(f"{name:12} {what:26} {ms:8.4f} ms/expert {speed / 1e9:7.1f} GB/s {speed / rate:6.2f} of read")

    for isa in asked.isa:
        cpu = NativeCpuExperts(layout, threads=asked.threads, isa=isa)
        for tokens in asked.tokens:
            row(cpu.isa, f"together, {tokens} tokens", together(cpu, held, tokens, asked.seconds))
        for routes in asked.routes:
            taken, empty = decode(cpu, probe, held, routes, asked.seconds)
            row(cpu.isa, f"decode, {routes} routes", taken)
        print(f"{cpu.isa:12} empty request: {empty * 1e6:.2f} us")
        cpu.close()
    if "torch" not in asked.without:
        with_torch = TorchCpuExperts(layout, threads=asked.threads)
        for tokens in asked.tokens:
            row("torch", f"together, {tokens} tokens", together(with_torch, held, tokens, asked.seconds))
    if "kt-kernel" not in asked.without and asked.dtype == "bfloat16":
        for tokens, taken in kt_kernel(layout, asked.threads, asked.tokens, asked.seconds).items():
            row("kt-kernel", f"together, {tokens} tokens", taken)


if __name__ == "__main__":
    main()
