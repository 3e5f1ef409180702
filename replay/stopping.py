"""SIGTERM while an event loop runs."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def until_terminated(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``; the first SIGTERM cancels it, so that it can clean up, as ``asyncio`` does for Ctrl-C.

    A Python handler that raises would do so wherever the loop just is; inside a transport's callback uvloop logs what
    it raises as an error and closes the connection instead.

    Raises:
        SystemExit: 143, after a SIGTERM.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        return await work
    task = asyncio.ensure_future(work)
    terminated = False

    def stop() -> None:
        nonlocal terminated
        if not terminated:
            terminated = True
            task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
