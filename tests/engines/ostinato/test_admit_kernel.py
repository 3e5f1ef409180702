"""The kernel that keeps least recently used slots, compiled for the CPU, beside the host's own bookkeeping."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

from numbered_store import CPU, EXPERTS, LAYERS, numbered_store

import engines.ostinato
from engines.ostinato.lru import Lru
from engines.ostinato.pool import ExpertPool

SOURCE = Path(engines.ostinato.__file__).with_name("handover.cu")
THREADS = 4
K = 3
BEFORE = f"""
#include <barrier>
#include <thread>
#include <vector>
#define __global__
#define __shared__ static
struct Index {{ int x; }};
static thread_local Index threadIdx;
static const Index blockDim = {{ {THREADS} }};
static std::barrier together({THREADS});
static void __syncthreads() {{ together.arrive_and_wait(); }}
static void atomicAdd(unsigned long long* at, unsigned long long n) {{ __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST); }}
static float to_float(const void* p, int i, int) {{ return ((const float*)p)[i]; }}
"""
AFTER = """
extern "C" void launch(long long* a[], int layer, int K, int E, int S) {
    std::vector<std::thread> threads;
    for (int t = 0; t < blockDim.x; t++) threads.emplace_back([=] {
        threadIdx.x = t;
        admit(a[0], a[1], 0, a[2], a[3], a[4], a[5], (int*)a[6], a[7], a[8], (float*)a[9],
              (unsigned long long*)a[10], a[11], (unsigned long long*)a[12], layer, K, E, S);
    });
    for (auto& thread : threads) thread.join();
}
"""


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel's own text between shims for what CUDA has; one thread for each of a small block's."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernel's text with")
    text = SOURCE.read_text()
    found = re.search(r'extern "C" __global__ void admit\(.*?\n}\n', text, re.DOTALL)
    assert found is not None
    folder = tmp_path_factory.mktemp("admit")
    (folder / "admit.cpp").write_text(BEFORE + found[0] + AFTER)
    words = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "admit.cpp", "-o", "admit.so"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(folder / "admit.so"))


def test_the_kernel_fetches_into_the_slots_that_the_host_would_take_and_into_no_shut_one(
    launch: ctypes.CDLL,
) -> None:
    store = numbered_store()
    pool = ExpertPool(store, CPU, 6 * LAYERS)
    lru = Lru(pool, per_layer=True)
    draw = np.random.default_rng(0)
    table_LE, clock, fetched = np.zeros((LAYERS, EXPERTS), np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    used_S, owner_S = np.zeros(pool.slots, np.int64), np.full(pool.slots, -1, np.int32)
    uses_E, addresses_K, copies_K = (np.zeros(n, np.int64) for n in (EXPERTS, K, K))
    weights_K, scaled_K = np.full(K, 0.5, np.float32), np.zeros(K, np.float32)
    host_fetched = 0
    for step in range(240):
        if step % 30 == 0:  # a barrier: the boundary moves, and the device takes over what the host says
            cap = int(draw.integers(K, 7))
            lru.limit(cap)
            used_S[:], clock[0], table_LE[:] = lru.used_S, lru.clock, pool.table_LE.numpy()
            owners = [pool.owner(slot) for slot in range(pool.slots)]
            owner_S[:] = [-1 if owner is None else owner[0] * EXPERTS + owner[1] for owner in owners]
        layer = step % LAYERS
        ids = draw.choice(EXPERTS, K, replace=False).astype(np.int64)
        scope = lru.scopes[layer]
        arrays = (ids, weights_K, table_LE, store.addresses, pool.address_S[scope], used_S[scope], owner_S[scope],
                  clock, addresses_K, scaled_K, uses_E, copies_K, fetched)  # fmt: skip
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        launch.launch(pointers, layer, K, EXPERTS, scope.stop - scope.start)
        host_fetched += lru.bring(layer, ids.tolist())
        assert (table_LE == pool.table_LE.numpy()).all()
        assert (used_S == lru.used_S).all()
        assert addresses_K.tolist() == [int(pool.address_S[pool.slot_LE[layer, e]]) for e in ids]
        assert int((owner_S[scope] >= 0).sum()) <= cap
        assert fetched[0] == host_fetched
    assert scaled_K.tolist() == [0.5] * K
