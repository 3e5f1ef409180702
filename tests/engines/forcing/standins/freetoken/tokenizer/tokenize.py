"""Stands in for FreeToken: what the hook wraps and calls, laid out and named as in freetoken 0.2.1."""

import torch
from freetoken.message import TokenizeMsg, UserMsg


class TokenizeManager:
    def tokenize(self, msgs: list[TokenizeMsg]) -> list[UserMsg]:
        return [
            UserMsg(uid=msg.uid, input_ids=torch.tensor([ord(c) for c in msg.text]), sampling_params=None)
            for msg in msgs
        ]
