"""A lean layer's choice of experts: the device's code, compiled for this machine with one thread a GPU thread."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

SOURCE = Path(__file__).parents[3] / "engines/ostinato/handover.cu"
THREADS = 64
MACHINE = """
#include <cmath>
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <thread>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __shared__ static
struct Index { int x; };
static thread_local Index threadIdx;
static pthread_barrier_t barrier;
static void __syncthreads() { pthread_barrier_wait(&barrier); }
static float to_float(const void* p, int i, int kind) {
    if (kind == 0) return ((const float*)p)[i];
    unsigned bits = (unsigned)((const unsigned short*)p)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void from_float(void* p, int i, int kind, float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    bits += 0x7fff + ((bits >> 16) & 1);
    if (kind == 0) ((float*)p)[i] = value;
    else ((unsigned short*)p)[i] = (unsigned short)(bits >> 16);
}
"""
MAIN = """
int main() {
    int E, K, among, kind;
    while (scanf("%d %d %d %d", &E, &K, &among, &kind) == 4) {
        std::vector<float> logits(E);
        for (float& v : logits) if (scanf("%f", &v) != 1) return 1;
        long long ids[32];
        float weights[32];
        const int threads = @;
        pthread_barrier_init(&barrier, nullptr, threads);
        std::vector<std::thread> block;
        for (int t = 0; t < threads; t++)
            block.emplace_back([&, t] {
                threadIdx.x = t;
                choose_by(logits.data(), 0, E, K, among, kind, ids, weights);
            });
        for (auto& t : block) t.join();
        for (int k = 0; k < K; k++) printf("%lld %.9g ", ids[k], weights[k]);
        printf("\\n");
    }
}
"""
Choose = Callable[..., tuple[list[int], "torch.Tensor"]]


@pytest.fixture(scope="module")
def choose(tmp_path_factory: pytest.TempPathFactory) -> Choose:
    """``choose(logits, K, among=…, kind=0)``: ids and weights."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("a C++ compiler is not here")
    text = SOURCE.read_text(encoding="utf-8")
    part = re.search(r"__device__ __forceinline__ float rounded.*?\n}\n.*?void choose_by\(.*?\n}\n", text, re.DOTALL)
    assert part is not None
    folder = tmp_path_factory.mktemp("choice")
    source, program = folder / "choice.cpp", folder / "choice"
    source.write_text(MACHINE + part[0] + MAIN.replace("@", str(THREADS)), encoding="utf-8")
    subprocess.run([compiler, "-std=c++17", "-O1", "-pthread", "-o", str(program), str(source)], check=True)

    def run(logits: torch.Tensor, K: int, *, among: bool, kind: int = 0) -> tuple[list[int], torch.Tensor]:
        given = " ".join(map(str, [len(logits), K, int(among), kind, *logits.tolist()]))
        done = subprocess.run([str(program)], input=given, capture_output=True, text=True, check=True)
        words = done.stdout.split()
        return [int(word) for word in words[::2]], torch.tensor([float(word) for word in words[1::2]])

    return run


@pytest.mark.parametrize("among", [False, True])
@pytest.mark.parametrize(("experts", "chosen"), [(60, 8), (7, 3), (64, 1), (8, 8)])
def test_it_is_the_softmax_of_the_largest_logits(choose: Choose, experts: int, chosen: int, *, among: bool) -> None:
    logits = torch.randn(experts, generator=torch.Generator().manual_seed(experts)) * 3
    best, wanted = logits.topk(chosen)
    shares = best.softmax(0) if among else logits.softmax(0)[wanted]
    ids, weights = choose(logits, chosen, among=among)
    assert ids == wanted.tolist()
    assert torch.allclose(weights, shares, rtol=1e-5, atol=0)
    _, rounded = choose(logits, chosen, among=among, kind=1)
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert torch.allclose(rounded, shares, rtol=1e-2, atol=0)


def test_equal_logits_go_to_the_lower_number(choose: Choose) -> None:
    ids, weights = choose(torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0]), 3, among=True)
    assert ids == [1, 3, 0]
    assert weights[0] == weights[1] > weights[2]


def test_logits_that_are_no_numbers_still_name_experts_that_exist(choose: Choose) -> None:
    ids, _ = choose(torch.full((6,), float("nan")), 4, among=False)
    assert all(0 <= expert < 6 for expert in ids)
