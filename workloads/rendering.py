"""Conversations rendered in order, here or in several processes at once."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING

from workloads.conversation import Conversation
from workloads.session import WorkloadError

if TYPE_CHECKING:
    from workloads.render import Rendered, Renderer

    Outcome = Rendered | WorkloadError | None
    """The session, why the conversation can't be rendered, or None where the model never answers."""

AHEAD = 4
"""Conversations in flight a process: they keep it busy, and a thousand of them would not fit memory."""

_renderer: "Renderer | None" = None


def rendered(
    conversations: Iterator[Conversation],
    make: "Callable[[], Renderer]",
    *,
    renderer: "Renderer",
    num_proc: int = 1,
) -> Iterator[tuple[Conversation, "Outcome"]]:
    """Yield each conversation with what became of it.

    Args:
        make: makes what ``renderer`` is, in another process.

    Raises:
        WorkloadError: a process died; and what reading the conversations raises.
    """
    if num_proc == 1:
        for conversation in conversations:
            yield conversation, _session(renderer, conversation)
        return
    waiting: deque[tuple[Conversation, Future[Outcome]]] = deque()
    # Tokenizers run threads, which a forked process would not have.
    pool = ProcessPoolExecutor(num_proc, mp_context=get_context("spawn"), initializer=_start, initargs=(make,))
    try:
        for conversation in conversations:
            waiting.append((conversation, pool.submit(_session_there, conversation)))
            if len(waiting) >= AHEAD * num_proc:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    except BrokenProcessPool as error:
        raise WorkloadError(
            "a rendering process died, most likely for want of memory; use a smaller num_proc"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(make: "Callable[[], Renderer]") -> None:
    global _renderer
    _renderer = make()


def _session_there(conversation: Conversation) -> "Outcome":
    assert _renderer is not None
    return _session(_renderer, conversation)


def _session(renderer: "Renderer", conversation: Conversation) -> "Outcome":
    if not any(message.origin == "model" for message in conversation.messages):
        return None
    try:
        return renderer.rendered(conversation)
    except WorkloadError as error:
        return error
