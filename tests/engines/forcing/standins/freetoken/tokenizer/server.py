"""Stands in for FreeToken: what the hook wraps and calls, laid out and named as in freetoken 0.2.1."""

from freetoken.message import PromptAdmittedMsg, UserReply


def _prompt_admitted_reply(msg: PromptAdmittedMsg) -> UserReply:
    return UserReply(
        uid=msg.uid,
        incremental_output="",
        finished=False,
        prompt_tokens_delta=msg.prompt_tokens,
        cached_tokens=msg.cached_tokens,
    )
