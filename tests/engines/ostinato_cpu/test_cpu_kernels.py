"""Every instruction set's kernels, and PyTorch's, against float64."""

import numpy as np
import pytest
import torch

from engines.ostinato.cpu.torch_path import TorchCpuExperts
from engines.ostinato.expert_layout import Activation, ExpertLayout

DTYPES = ("float32", "bfloat16", "float16", "mxfp4")
ACTIVATIONS = (
    Activation(),
    Activation("gelu_tanh"),
    Activation("silu_clamp", limit=1.0),
    Activation("swiglu_oai", alpha=1.702, limit=1.5),
)
# Of the root mean square. Inner activations left unrounded where the reference rounds them make 1.6e-3 with bfloat16;
# the kernels may differ only where a value falls on the other side of a tie.
TOLERANCE = {"float32": 2e-6, "bfloat16": 5e-4, "float16": 2e-6, "mxfp4": 5e-4}
TORCH_TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2, "float16": 3e-3, "mxfp4": 2e-2}


def computed(experts, x_TD, routes):
    out_TD = torch.full(x_TD.shape, 7.0)
    experts.compute(routes.experts, routes.starts, routes.tokens, routes.weights, x_TD, out_TD)
    return out_TD


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.kind)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_equal_float64(dtype, bias, activation, isas, opened, bank) -> None:
    layout = ExpertLayout(128, 96, dtype, bias, activation)
    held = bank(layout, 3)
    calls = [(held.x(tokens), held.routes(tokens)) for tokens in (1, 3, 8, 33, 200)]
    expected = [held.expected(*call) for call in calls]
    for isa in isas(dtype):
        with opened(layout, isa=isa) as experts:
            assert experts.isa == isa
            for call, wanted in zip(calls, expected, strict=True):
                assert error(computed(experts, *call), wanted) < TOLERANCE[dtype], (isa, len(wanted))


@pytest.mark.parametrize("dtype", DTYPES)
def test_widths_that_no_vector_divides(dtype, isas, opened, bank) -> None:
    sizes = ((32, 64), (160, 32), (288, 224)) if dtype == "mxfp4" else ((10, 6), (72, 40), (258, 131), (160, 96))
    for hidden, width in sizes:
        layout = ExpertLayout(hidden, width, dtype, bias=True)
        held = bank(layout, 4)
        calls = [(held.x(tokens), held.routes(tokens)) for tokens in (1, 5, 40)]
        expected = [held.expected(*call) for call in calls]
        for isa in isas(dtype):
            with opened(layout, isa=isa) as experts:
                for call, wanted in zip(calls, expected, strict=True):
                    found = computed(experts, *call)
                    assert error(found, wanted) < TOLERANCE[dtype], (hidden, width, isa, len(wanted))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_gives_the_same_bits(dtype, isas, opened, bank) -> None:
    layout = ExpertLayout(192, 160, dtype, bias=True)
    held = bank(layout, 6)
    for isa in isas(dtype):
        for tokens in (1, 7, 60):
            x_TD, routes = held.x(tokens), held.routes(tokens)
            found = []
            for threads in (1, 2, 3):
                with opened(layout, threads, isa=isa) as experts:
                    found += [computed(experts, x_TD, routes) for _ in range(3)]
            assert all(torch.equal(found[0], other) for other in found[1:]), (isa, tokens)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_tiles_a_token_is_computed_alike_alone_and_among_many(dtype, isas, opened, bank) -> None:
    layout = ExpertLayout(192, 160, dtype)
    held = bank(layout, 1)
    x_TD, routes = held.x(21), held.routes(21, share=1.1)
    for isa in set(isas(dtype)) - {"amx"}:
        with opened(layout, isa=isa) as experts:
            together = computed(experts, x_TD, routes)
            starts, token = np.array([0, 1], np.int32), np.zeros(1, np.int32)
            for i, row in enumerate(routes.tokens[:12]):
                alone = torch.empty(1, 192)
                weight = routes.weights[i : i + 1].copy()
                experts.compute(routes.experts, starts, token, weight, x_TD[row][None], alone)
                assert torch.equal(alone[0], together[row]), isa


def test_a_token_without_a_route_becomes_zero(opened, bank) -> None:
    layout = ExpertLayout(64, 32, "float32")
    held = bank(layout, 2)
    nothing = np.zeros(0, np.int64), np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
    with opened(layout) as experts:
        found = computed(experts, held.x(5), held.routes(5))
        assert found[:-1].abs().min() > 0
        assert not found[-1].any()
        experts.compute(*nothing, held.x(5), found)
        assert not found.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_torch_path_computes_the_same(dtype, bank) -> None:
    for bias in (False, True):
        for activation in ACTIVATIONS:
            layout = ExpertLayout(128, 96, dtype, bias, activation)
            held = bank(layout, 3)
            experts = TorchCpuExperts(layout, threads=torch.get_num_threads())
            for tokens in (1, 33):
                x_TD, routes = held.x(tokens), held.routes(tokens)
                found = computed(experts, x_TD, routes)
                assert error(found, held.expected(x_TD, routes)) < TORCH_TOLERANCE[dtype], (bias, activation, tokens)


def test_an_instruction_set_that_is_not_there_is_refused(opened) -> None:
    with pytest.raises(ValueError, match="has no avx1024"), opened(ExpertLayout(64, 32, "float32"), isa="avx1024"):
        pass


def test_fewer_cores_than_threads_are_refused(opened) -> None:
    with pytest.raises(ValueError, match="2 threads need"), opened(ExpertLayout(64, 32, "float32"), 2, cores=[0]):
        pass
