"""What a calibration file gives an engine that starts, and whether it was made for this one."""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from engines.ostinato import rates
from engines.ostinato.cpu.library import CpuExperts
from engines.ostinato.errors import SetupError
from engines.ostinato.experts import Experts
from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import model_shape
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.shares import Rates

MEASURED = "rates measured now; --calibration FILE makes them repeatable"


def read(path: Path, model: Path) -> Calibration:
    """Load a calibration of this model.

    Raises:
        SetupError: no such file, a damaged one, or one of another model.
    """
    found = calibrations.read(path)
    wanted = model_shape.read(model).model_hash
    if found.model_hash != wanted:
        raise SetupError(
            f"{path} was measured with model {found.model_hash}, {model} is {wanted}; run calibrate with this model"
        )
    return found


def choose_rates(experts: Experts, calibration: Calibration | None, say: Callable[[str], None]) -> Rates:
    """The file's rates, so that a request is shared between CPU and upload as it was before a restart; else measured.

    A file from another machine is used all the same, and said to be one: what it balances is the same each time, if
    not in balance.
    """
    saved = calibration.groups[0].rates if calibration is not None else None
    if calibration is None or saved is None:
        measured = rates.measure(experts)
        say(MEASURED if calibration is None else f"the calibration holds no rates: {MEASURED}")
        return measured
    here = machine(experts.pool.device, experts.cpu, experts.pool.store.layout.dtype)
    if other := differences(calibration.machine, here):
        say(f"the calibration was made elsewhere ({'; '.join(other)}): its times need not hold; calibrate again")
    return saved


def machine(device: torch.device, cpu: CpuExperts, dtype: str) -> dict[str, str]:
    """Where a calibration holds.

    Args:
        dtype: the experts'.
    """
    info = Path("/proc/cpuinfo")
    names = (
        [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    )
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": str(cpu.threads),
        "instructions": cpu.isa,
        "experts": dtype,
        "torch": str(torch.__version__),
    }


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What is not alike, of what both name."""
    return [
        f"{key} {there[key]}, here {value}" for key, value in here.items() if key in there and there[key] != value
    ]
