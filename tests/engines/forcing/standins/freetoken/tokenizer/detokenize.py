"""Stands in for FreeToken: what the hook wraps and calls, laid out and named as in freetoken 0.2.1."""

from freetoken.message import DetokenizeMsg


class DetokenizeManager:
    def detokenize(self, msgs: list[DetokenizeMsg]) -> list[str]:
        return ["" if msg.next_token % 2 else f" word{msg.next_token}" for msg in msgs]
