"""Forcing from outside: a preloaded library decides each token of an unmodified llama.cpp-family server."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from engines.base import Answer, EngineError, ForcedRequest, Mount
from engines.binary import find
from engines.forcing.compiled import check_dynamic, library
from engines.forcing.planned import PlannedForcing
from engines.forcing.verdict import check, check_count
from engines.settings import EngineSettings


class ShimForcing(PlannedForcing):
    """For servers of the llama.cpp family, run with one slot (``-np 1``).

    Raises:
        EngineError: no compiler, a static build, or a server that somebody else starts.
    """

    name = "shim"

    def __init__(self, settings: EngineSettings, folder: Path) -> None:
        if settings.launch == "attach":
            raise EngineError(
                "engine.forcing=shim needs engine.launch=process or container, as the library is loaded when the "
                "server starts; set engine.forcing=field for a running server that takes forced_tokens, or one_token"
            )
        if settings.launch == "process":
            command = settings.binary or (settings.command[0] if settings.command else "")
            if found := find(command):
                check_dynamic(found, settings.env)
        compiled = library()
        super().__init__(settings, folder)
        # The loader splits LD_PRELOAD at blanks and colons, which the cache's path may have; this folder's has none.
        self._library = self._plan.folder / "force.so"
        if settings.launch == "process":
            self._library.symlink_to(compiled)
        else:  # a container sees this folder only
            shutil.copyfile(compiled, self._library)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "OSTINATO_FORCE_PLAN": str(self._plan.path)}

    def mounts(self) -> tuple[Mount, ...]:
        return Mount(path=self._library), Mount(path=self._plan.path, writable=True)

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, tuple[int, ...] | None]:
        """Check inside the server: what its sampler chose and what it fed back to the model.

        The last token is never fed back within its turn. Servers older than ``llama_sampler_accept`` do not say what
        they chose; there the last token rests on its forced logits and, where the stream tells it, on its id.
        """
        produced = answer.report.generated_tokens
        if produced is None:
            produced = sum(chunk.n_tokens for chunk in answer.chunks)
        self._check_reached(produced)
        self._check_prompt(request)
        first, expected = len(request.prompt_ids), request.output_ids
        end = first + min(produced, len(expected))
        chosen = self._plan.chosen(first, end)
        fed = self._plan.fed(first, end - 1)
        check(expected, [*fed, expected[len(fed)]] if produced else ())
        check(expected, [forced if id_ == -1 else id_ for forced, id_ in zip(expected, chosen, strict=False)])
        check_count(expected, produced)
        _check_streamed(expected, (token for chunk in answer.chunks for token in chunk.ids))
        stamps = self._plan.chosen_ns(first, end)
        if missing := stamps.count(0):
            position = stamps.index(0)
            raise EngineError(
                f"output token {position} was chosen without its forced logits ({missing} such); "
                "switch off what decides tokens elsewhere in the server",
                kind="wrong_tokens",
            )
        return "shim", tuple(stamps)

    def _check_reached(self, produced: int) -> None:
        """Tell a library that does nothing from a server that does something else."""
        if self._plan.pid is None:
            raise EngineError(
                "the server did not load the forcing library; start its program itself (no setuid program, no script "
                "that clears LD_PRELOAD) as engine.command; in a container its libc must not be older than the one "
                "that the library was compiled with: server.log says so"
            )
        if produced and not self._plan.forced:
            why = (
                "fetched no logits"
                if not self._plan.fetches
                else "named no positions in its batches"
                if not self._plan.batches
                else "decoded at other positions than the prompt's"
            )
            raise EngineError(
                f"no token was forced: the server {why} through libllama; run it with one slot (-np 1), "
                "or use a newer llama.cpp with a shared libllama",
                kind="wrong_tokens",
            )

    def _check_prompt(self, request: ForcedRequest) -> None:
        """The newly computed tail of the prompt must be the recorded one, without tokens the server adds."""
        fed = self._plan.fed(0, len(request.prompt_ids))
        for position in range(len(fed) - 1, -1, -1):
            if fed[position] == -1:  # from the cache
                break
            if fed[position] != request.prompt_ids[position]:
                raise EngineError(
                    f"prompt token {position}: sent {request.prompt_ids[position]}, the server computed "
                    f"{fed[position]}; keep it from adding tokens to prompts of ids",
                    kind="wrong_tokens",
                )


def _check_streamed(expected: tuple[int, ...], streamed: Iterable[int]) -> None:
    """A server loses ids of the stream while it holds back incomplete text: those that came must fit in order."""
    rest = iter(enumerate(expected))
    for id_ in streamed:
        if not any(forced == id_ for _, forced in rest):
            raise EngineError(
                f"the stream carries token {id_} where it was not forced; is another client using the server?",
                kind="wrong_tokens",
            )
