"""How fast recordings become token ids: sessions a second, growth with length, growth with processes.

    python benchmarks/rendering.py
    python benchmarks/rendering.py --tokenizer models/qwen3 --chat-template qwen3_coder.jinja --processes 1 2 4

Sessions are made of lines of the bundled recordings in seeded random order, a tool call and its output a turn, so
that no two share more than the system prompt and the tools, as in a data set.
"""

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats import conversation_json
from workloads.render import Renderer
from workloads.rendering import rendered
from workloads.sample_paths import CONVERSATIONS, TOKENIZER
from workloads.session import WorkloadError

TARGET = 20.0
"""Sessions a second."""
TOKENS = 40_000
CHARACTERS_A_TURN = 1_800


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="folder with tokenizer.json")
    parser.add_argument("--chat-template", type=Path, help="a jinja file instead of the folder's template")
    parser.add_argument("--on-prefix-break", default="fail", help="fail, replay or bridge")
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a session")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args(arguments)
    make = partial(
        Renderer,
        options.tokenizer,
        chat_template=options.chat_template,
        on_prefix_break=options.on_prefix_break,
        allow_template_loss=True,
    )
    renderer = make()
    turns = turns_of(renderer, options.tokens)
    print(f"tokenizer {options.tokenizer}, template {options.chat_template or 'its own'}")
    print(
        f"{options.sessions} sessions of {turns} turns;"
        f" target: {TARGET:.0f} sessions/s of {TOKENS:,} tokens on 2 cores"
    )
    base = 0.0
    for processes in options.processes:
        rate, tokens = sessions_a_second(make, renderer, options.sessions, turns, processes)
        base = base or rate
        print(
            f"num_proc={processes}: {rate:.1f} sessions/s of {tokens:,.0f} tokens, {rate / base:.2f} times the first"
        )
    short, long = cpu_s(renderer, turns), cpu_s(renderer, 2 * turns)
    print(
        f"CPU time of a session: {short * 1e3:.0f} ms; of twice the turns: {long * 1e3:.0f} ms; ratio"
        f" {long / short:.2f} (2 is linear)"
    )


def sessions_a_second(
    make: "partial[Renderer]", renderer: Renderer, sessions: int, turns: int, processes: int
) -> tuple[float, float]:
    """The rate, from when every process has started to the last session, and the mean tokens of a session."""
    conversations = list(made(sessions + 2 * processes, turns))
    begun, tokens = time.perf_counter(), 0
    outcomes = rendered(iter(conversations), make, renderer=renderer, num_proc=processes)
    for done, (conversation, outcome) in enumerate(outcomes, start=1):
        if isinstance(outcome, WorkloadError) or outcome is None:
            raise SystemExit(f"{conversation.conversation_id}: {outcome}")
        tokens += outcome.session.longest_context
        if done == 2 * processes:
            begun = time.perf_counter()
    return sessions / (time.perf_counter() - begun), tokens / len(conversations)


def cpu_s(renderer: Renderer, turns: int) -> float:
    """Median CPU time of a session of so many turns; each is another session, so that nothing is remembered."""
    times = []
    for conversation in made(7, turns, seed=turns):
        begun = time.process_time()
        renderer.rendered(conversation)
        times.append(time.process_time() - begun)
    return median(times)


def turns_of(renderer: Renderer, tokens: int) -> int:
    """How many turns hold so many tokens with this tokenizer."""
    (session,) = (renderer.render(conversation) for conversation in made(1, 40, seed=1))
    first = len(session.turns[0].delta_ids)
    return max(1, round((tokens - first) / ((session.longest_context - first) / 40)))


def made(sessions: int, turns: int, seed: int = 0) -> Iterator[Conversation]:
    (recorded,) = conversation_json.load(CONVERSATIONS / "repair_coltable.json")
    lines = [
        line
        for conversation in conversation_json.load(CONVERSATIONS)
        for message in conversation.messages
        for line in message.content.splitlines(keepends=True)
    ]
    head = tuple(itertools.takewhile(lambda message: message.role != "assistant", recorded.messages))
    for number in range(sessions):
        rng = np.random.default_rng([seed, number])
        messages = list(head)
        for turn in range(turns):
            call = ToolCall(name="run", arguments=f'{{"command": "{turn}"}}', call_id=f"call{turn:05}")
            messages += [
                Message(role="assistant", origin="model", content=_text(lines, rng, 0.15), tool_calls=(call,)),
                Message(
                    role="tool",
                    origin="given",
                    content=_text(lines, rng, 0.85),
                    tool_call_id=call.call_id,
                    name="run",
                ),
            ]
        messages.append(Message(role="assistant", origin="model", content="Done."))
        yield Conversation(
            conversation_id=f"made-{seed}-{number}", source="made", messages=tuple(messages), tools=recorded.tools
        )


def _text(lines: Sequence[str], rng: np.random.Generator, share: float) -> str:
    parts: list[str] = []
    length = 0
    while length < share * CHARACTERS_A_TURN:
        parts.append(lines[int(rng.integers(len(lines)))])
        length += len(parts[-1])
    return "".join(parts)


if __name__ == "__main__":
    main()
