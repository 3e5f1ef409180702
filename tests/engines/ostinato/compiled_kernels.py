"""Compiles the Triton kernels for GPUs that need not be here; prints one name a line."""

import torch  # noqa: F401 - before Triton, which asks it for the driver
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engines.ostinato import attention_kernels, kernels

TARGETS = (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32))
HIDDEN, WIDTH = 2880, 2880
SCALES = {"GATE_SCALES": 4096, "UP_SCALES": 8192}
POINTERS = {
    "x": "*bf16",
    "h": "*bf16",
    "q": "*bf16",
    "keys": "*bf16",
    "values": "*bf16",
    "out_routes": "*bf16",
    "routes": "*i32",
    "addresses": "*i64",
    "starts": "*i32",
    "counts": "*i32",
    "weights": "*fp32",
    "ids": "*i64",
    "here": "*u8",
    "cpu": "*fp32",
    "alpha": "fp32",
    "limit": "fp32",
    "scale": "fp32",
    "window": "i32",
    "length": "*i32",
    "partial": "*fp32",
    "tops": "*fp32",
    "sums": "*fp32",
    "sinks": "*bf16",
}
GROUPED = {
    "K": 4,
    "D": HIDDEN,
    "I": WIDTH,
    "UP": 64,
    "GATE_BIAS": 64,
    "UP_BIAS": 64,
    "ACTIVATION": 3,
    "BN": 64,
    "BK": 64,
}
DOWN = {"D": HIDDEN, "I": WIDTH, "DOWN": 64, "DOWN_BIAS": 64}
ATTENTION = {
    "N": 4096, "SHARE": 8, "SHARED": 16, "W": 64, "BW": 64, "V": 64, "BV": 64, "PARTS": 32, "BN": 64,
}  # fmt: skip


def compile_(name: str, kernel: object, out: str, warps: int, constants: dict[str, int], target: GPUTarget) -> None:
    names = kernel.arg_names  # type: ignore[attr-defined]
    given = constants | {n: 0 for n in names if n.endswith("_SCALES") and n not in constants}
    signature = {n: "constexpr" if n in given else out if n == "out" else POINTERS[n] for n in names}
    source = ASTSource(kernel, signature, constexprs={(names.index(n),): value for n, value in given.items()})
    made = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": 3})
    print(name, target.arch, made.metadata.shared, flush=True)


def main() -> None:
    for target in TARGETS:
        for scales in (False, True):
            up = SCALES if scales else {}
            down = {"DOWN_SCALES": 4096} if scales else {}
            mark = "mxfp4" if scales else "bf16"
            for routes, warps in ((16, 4), (128, 8)):
                compile_(
                    f"grouped_up {mark} {routes}",
                    kernels.grouped_up,
                    "",
                    warps,
                    GROUPED | up | {"BM": routes},
                    target,
                )
                compile_(
                    f"grouped_down {mark} {routes}", kernels.grouped_down, "*bf16", warps,
                    DOWN | down | {"BM": routes, "BN": 128, "BK": 64}, target,
                )  # fmt: skip
            one = {name: value for name, value in GROUPED.items() if name not in ("K", "BN", "BK")}
            compile_(f"decode_up {mark}", kernels.decode_up, "", 4, one | up | {"BI": 8, "BD": 512}, target)
            compile_(
                f"decode_down {mark}",
                kernels.decode_down,
                "*fp32",
                4,
                DOWN | down | {"K": 4, "BR": 8, "BI": 256},
                target,
            )
        combine = {"K": 4, "D": HIDDEN, "WITH_CPU": True, "BD": 1024}
        compile_("combine", kernels.combine, "*bf16", 4, combine, target)
        compile_("attend_part", attention_kernels.attend_part, "", 4, ATTENTION, target)
        join = {"V": 64, "BV": 64, "PARTS": 32, "WITH_SINKS": True}
        compile_("attend_join", attention_kernels.attend_join, "*bf16", 4, join, target)


if __name__ == "__main__":
    main()
