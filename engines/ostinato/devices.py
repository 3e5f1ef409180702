"""Which devices ``--device`` names."""

import torch

from engines.ostinato.errors import SetupError


def devices(text: str) -> tuple[torch.device, ...]:
    """``auto``: every visible GPU (as llama.cpp takes them), else the CPU; otherwise those named.

    A CPU named more than once stands for as many devices: a way to run what several GPUs do without one.

    Raises:
        SetupError: no such device, a GPU named twice, GPUs and a CPU together.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        return tuple(torch.device("cuda", index) for index in range(count)) or (torch.device("cpu"),)
    found = tuple(_device(name.strip(), count) for name in text.split(","))
    if len({device.type for device in found}) > 1:
        raise SetupError(f"--device {text} mixes a CPU and GPUs; name GPUs only: the CPU computes beside them anyway")
    if found[0].type == "cuda" and len(set(found)) < len(found):
        raise SetupError(f"--device {text} names a GPU twice; name each once")
    return found


def _device(name: str, count: int) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SetupError(f"--device {name} is no device; use auto, cpu, cuda:N, or several: cuda:0,cuda:1") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise SetupError(f"--device {name} can't be used; use auto, cpu, cuda:N, or several: cuda:0,cuda:1")
    if not count:
        raise SetupError(f"--device {name}: PyTorch finds no CUDA device here; leave --device out")
    if (device.index or 0) >= count:
        raise SetupError(f"--device {name}: there are {count} GPUs here, numbered from 0")
    return torch.device("cuda", device.index or 0)
