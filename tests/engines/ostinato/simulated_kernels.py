"""The kernels of handover.cu in Python, with the arguments that they have there."""

import time
from collections.abc import Callable
from typing import Any

import torch

from engines.ostinato.device_branch import block_at

_LIMIT_S = 60.0
"""Instead of the kernels' own: this machine may be busy."""


def kernels(launch: Callable[[Callable[[], None]], None]) -> Callable[[str], Any]:
    """By name, as ``handover.kernel`` gives them.

    Args:
        launch: runs a kernel, or records it.
    """

    def route(ids, weights, _kind, x, table, addresses, scaled, uses, request, sequence, pending, layer, K, _chunks):
        found = table[ids[0]]
        addresses.copy_(found)
        scaled.copy_(weights[0])
        for expert in ids[0].tolist():
            uses[expert] += 1
        cold = [k for k in range(K) if found[k] == 0]
        pending.fill_(len(cold))
        if not cold:
            return
        words, floats = request[:256].view(torch.int32), request[:256].view(torch.float32)
        words[1], words[2] = layer, len(cold)
        for i, k in enumerate(cold):
            words[4 + i], floats[20 + i] = ids[0, k], weights[0, k]
        request[256 : 256 + x.nbytes] = x.view(torch.uint8).reshape(-1)
        sequence += 1
        words[0] = sequence[0]

    def join(gpu, response, sequence, pending, out, _kind, D, layer, failed, failure, _timeout_ms):
        total = gpu.clone()
        if pending[0] > 0 and failed[0] == 0:
            words = response[:256].view(torch.int32).numpy()
            end = time.monotonic() + _LIMIT_S  # rather than the kernel's: this machine may be busy
            while words[0] != int(sequence):
                if time.monotonic() > end:
                    failed[0], failure[0] = 1, layer + 1
                    break
                time.sleep(0)
            else:
                assert words[1] == 0
                total += response[256 : 256 + 4 * D].view(torch.float32)
        out.copy_(total.reshape(out.shape))

    def emit(choice, token, forced, forcing, step, position, length, ring, ring_size, done):
        i = int(step)
        ring[i % ring_size] = choice
        token.fill_(int(forced[i]) if forcing[0] else int(choice))
        step += 1
        position += 1
        length += 1
        done[0] = i + 1

    def carry(source, target, _bytes):
        target.view(torch.uint8).reshape(-1).copy_(source.reshape(-1).view(torch.uint8))

    def advance(position, length):
        position += 1
        length += 1

    def admit(ids, weights, _kind, tables, sources, slots, used, owner, clock, addresses, scaled, uses, copies,
              fetched, layer, K, E, S):  # fmt: skip
        clock += 1
        scaled.copy_(weights[0])
        copies.zero_()
        chosen = ids[0].tolist()
        for expert in chosen:
            uses[expert] += 1
            hit = tables[layer, expert]
            used[(slots == hit) & (hit != 0)] = clock[0]
        for k, expert in enumerate(chosen):
            if tables[layer, expert] == 0:
                s = int(used.argmin())
                if owner[s] >= 0:
                    tables.view(-1)[int(owner[s])] = 0
                owner[s] = layer * E + expert
                used[s] = clock[0]
                tables[layer, expert] = slots[s]
                copies[k] = sources[layer, expert]
                fetched += 1
            addresses[k] = tables[layer, expert]

    def fetch(copies, addresses, chunks):
        for source, target in zip(copies.tolist(), addresses.tolist(), strict=True):
            if source:
                block_at(target, 16 * chunks).copy_(block_at(source, 16 * chunks))

    known = {f.__name__: f for f in (route, join, emit, carry, advance, admit, fetch)}

    def kernel(name: str) -> Any:
        return lambda _grid, _block, args: launch(lambda: known[name](*args))

    return kernel
