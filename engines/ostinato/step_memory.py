"""What a captured step keeps at its place from one step to the next, on each device and for each group of experts."""

import torch
from torch import Tensor

from engines.ostinato.experts import Experts
from engines.ostinato.gpu_branch import TritonBranch
from engines.ostinato.handover import Post
from engines.ostinato.lru_slots import LruSlots

# Shapes: K = experts a token, D = hidden size, I = inner width, L = MoE layers of a group, E = experts.


class DevicePart:
    """One device's graph, and the memory that it reads and writes in every step."""

    def __init__(self, device: torch.device, hidden: int, dtype: torch.dtype, K: int) -> None:
        def whole(*shape: int, kind: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=kind, device=device)

        self.device = device
        self.post = Post(hidden, dtype.itemsize)
        self.addresses_K, self.weights_K = whole(K, kind=torch.int64), whole(K, kind=torch.float32)
        self.out_D = whole(hidden, kind=torch.float32)
        self.no_D = whole(hidden, kind=torch.float32)
        """Zeros: joined where the branches run in turn."""
        self.cpu_1D = whole(1, hidden, kind=torch.float32)
        self.sequence, self.pending, self.failed = (whole(1, kind=torch.int32) for _ in range(3))
        self.graph = torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream(device)
        """Where it is captured."""
        self.done = torch.cuda.Event()
        self.incoming: list[Tensor] = []
        """Page-locked: what the device before hands over."""

    def clear(self) -> None:
        """After a failure; nothing may run."""
        self.failed.zero_()
        self.sequence.zero_()
        self.post.clear()


class GroupPart:
    """What a group of experts keeps besides."""

    def __init__(self, group: Experts, part: DevicePart, dtype: torch.dtype, K: int) -> None:
        assert isinstance(group.branch, TritonBranch)
        self.group, self.part, self.branch = group, part, group.branch
        layout, device = group.pool.store.layout, group.pool.device
        self.h_KI = torch.zeros(K, layout.width, dtype=dtype, device=device)
        self.uses_LE = torch.zeros(*group.uses_LE.shape, dtype=torch.int64, device=device)
        self.lru = LruSlots(group.lru, K) if group.lru is not None else None
