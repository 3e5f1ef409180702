"""Compiles the kernels of passes of every size, so that no request waits for it."""

import numpy as np
import torch

from engines.ostinato.experts import Experts
from engines.ostinato.packing import TORCH
from engines.ostinato.routes_of_pass import Routes


def warm(experts: Experts, per_token: int) -> None:
    """Run the device branch of a group on a GPU, with blocks of whatever lies in its staging."""
    pool, branch, staging = experts.pool, experts.branch, experts.staging
    assert staging is not None
    layout, K = pool.store.layout, per_token
    kind = TORCH.get(layout.dtype, torch.bfloat16)
    with torch.cuda.device(pool.device):
        for block in (16, 32, 64, 128):
            tokens = -(-block // K)
            x_TD = torch.zeros(tokens, layout.hidden, dtype=kind, device=pool.device)
            ids_TK = torch.zeros(tokens, K, dtype=torch.int64, device=pool.device)
            routes_of_pass = Routes(np.zeros((tokens, K), np.int64), pool.store.experts)
            for cpu_TD in (None, torch.zeros(tokens, layout.hidden, device=pool.device)):
                the_pass = branch.begin(x_TD, ids_TK, ids_TK.to(kind), routes_of_pass)
                the_pass.run(np.zeros(1, np.int64), np.array([staging.blocks.data_ptr()], np.int64))
                the_pass.join(cpu_TD)
