"""The fake engine's streams by name, and which of them a dialect has."""

from engines.fake.faults import FAULTS, OPENAI_FAULTS
from engines.fake.shapes import CHAT_SHAPES, FINISH_SHAPES, OPENAI_SHAPES, SGLANG_SHAPES, SHAPES, TEXT_SHAPES
from engines.fake.streams import Shape

STREAMS = SHAPES | OPENAI_SHAPES | TEXT_SHAPES | CHAT_SHAPES | SGLANG_SHAPES | FAULTS | OPENAI_FAULTS

_OWN_SHAPES: dict[str, dict[str, Shape]] = {
    "freetoken": OPENAI_SHAPES,
    "llamacpp": {},
    "openai": OPENAI_SHAPES | TEXT_SHAPES,
    "openai_chat": OPENAI_SHAPES | TEXT_SHAPES | CHAT_SHAPES,
    "ostinato": OPENAI_SHAPES,
    "sglang": SGLANG_SHAPES,
    "vllm": OPENAI_SHAPES | FINISH_SHAPES,
}


def shapes(dialect: str) -> dict[str, Shape]:
    """The legal shapes of a dialect's streams by name; all of them hold token ids but those of ``TEXT_SHAPES``."""
    return SHAPES | _OWN_SHAPES[dialect]


def faults(dialect: str) -> dict[str, Shape]:
    """The faults of a dialect's streams by name."""
    return FAULTS if dialect == "llamacpp" else FAULTS | OPENAI_FAULTS
