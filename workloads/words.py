"""Commands given as ``key=value`` words, the form that ``replay`` takes its settings in."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workloads.session import WorkloadError


def parse(words: Sequence[str], known: Mapping[str, Callable[[str, str], Any]]) -> dict[str, Any]:
    """Return the values by key.

    Args:
        known: makes a key's value from the key and the text, for each key there may be.

    Raises:
        WorkloadError: a word of another form, an unknown key, one given twice, or a value that is none.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            raise WorkloadError(f"{word!r} is no key=value; keys are {', '.join(known)}")
        key = key.replace("-", "_")
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"do you mean {near[0]}=?" if near else f"keys are {', '.join(known)}"
            raise WorkloadError(f"there is no {key}=; {hint}")
        if key in values:
            raise WorkloadError(f"{key}= is given twice; give it once")
        if not text:
            raise WorkloadError(f"{key}= has no value; give one, or leave the word out")
        values[key] = known[key](key, text)
    return values


def text(_: str, value: str) -> str:
    return value


def place(_: str, value: str) -> Path:
    return Path(value).expanduser()


def count(key: str, value: str) -> int:
    """A whole number from 1 up."""
    number = whole(key, value)
    if number < 1:
        raise WorkloadError(f"{key}={value} is no count; give a whole number from 1 up")
    return number


def whole(key: str, value: str) -> int:
    """A whole number from 0 up."""
    if not (value.isascii() and value.isdigit()):
        raise WorkloadError(f"{key}={value} is no whole number; give one from {'1' if key != 'seed' else '0'} up")
    return int(value)


def yes_or_no(key: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise WorkloadError(f"{key}={value}: give true or false")
    return value == "true"


def one_of(*choices: str) -> Callable[[str, str], str]:
    def choice(key: str, value: str) -> str:
        if value not in choices:
            raise WorkloadError(f"{key}={value} is unknown; known are {', '.join(choices)}")
        return value

    return choice
