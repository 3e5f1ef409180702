"""The fake engine's streams by name, and which of them a dialect has."""

from engines.fake.faults import FAULTS, OPENAI_FAULTS
from engines.fake.shapes import CHAT_SHAPES, OPENAI_SHAPES, SHAPES, TEXT_SHAPES
from engines.fake.streams import Shape
from engines.fake.wires import LlamaCpp

STREAMS = SHAPES | OPENAI_SHAPES | TEXT_SHAPES | CHAT_SHAPES | FAULTS | OPENAI_FAULTS


def shapes(dialect: str) -> dict[str, Shape]:
    """The legal shapes of a dialect's streams by name; all of them hold token ids but those of ``TEXT_SHAPES``."""
    own = {"ostinato": {}, "openai": TEXT_SHAPES, "openai_chat": TEXT_SHAPES | CHAT_SHAPES}
    return SHAPES if dialect == LlamaCpp.dialect else SHAPES | OPENAI_SHAPES | own[dialect]


def faults(dialect: str) -> dict[str, Shape]:
    """The faults of a dialect's streams by name."""
    return FAULTS if dialect == LlamaCpp.dialect else FAULTS | OPENAI_FAULTS
