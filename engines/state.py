"""What an engine learns and keeps beyond a run (heat maps, usage files, bandwidth profiles): private to each start.

A run leaves its engine's state in ``<run>/state``, with a file beside the engine's own that says which sessions
taught it. Another run may start from a copy of it, if they were development sessions: what is measured must
not have been learnt from.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines.base import EngineError
from engines.container.spec import command as inside
from engines.placeholders import names_state
from engines.settings import EngineSettings

FOLDER = "state"
TAUGHT_BY = "taught_by.json"
COLD, WARM = "cold", "warm:"
DEVELOPMENT = ("development", "screening")
"""Splits whose sessions may teach an engine; screening sessions are development sessions cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One replay that an engine learnt from."""

    engine: str
    workload: str
    workload_hash: str
    split: str | None
    """As the session file or the preset says; None where nothing does."""


def keeps_state(settings: EngineSettings) -> bool:
    """Whether the engine is given a state folder at all."""
    started = inside(settings) if settings.launch == "container" else settings.command
    return settings.launch != "attach" and names_state(started, settings)


def check_state(settings: EngineSettings) -> None:
    """Refuse a state that can't be started from, before anything runs.

    Raises:
        EngineError: no such setting or folder, a folder of another engine, or one taught by other than development
            sessions.
    """
    if settings.state == COLD:
        return
    if not settings.state.startswith(WARM):
        raise EngineError(f"engine.state={settings.state} is not known; set cold or warm:FOLDER")
    if not keeps_state(settings):
        raise EngineError(
            f"engine.state={settings.state}: engine {settings.name} keeps nothing beyond a run (no {{state}} in its "
            "command or environment); set engine.state=cold"
        )
    folder = _prepared(settings)
    if not folder.is_dir():
        raise EngineError(
            f"engine.state={settings.state}: there is no folder {folder}; replay development sessions on this engine "
            "first and name the folder state that the run leaves"
        )
    lessons = read_lessons(folder)
    if not lessons:
        raise EngineError(
            f"{folder}: no {TAUGHT_BY} says which sessions prepared it; name the folder state of a run that has ended"
        )
    for lesson in lessons:
        if lesson.engine != settings.name:
            raise EngineError(f"{folder}: is what {lesson.engine} learnt, not {settings.name}; name another folder")
        if lesson.split not in DEVELOPMENT:
            raise EngineError(
                f"{folder}: was prepared by {lesson.split or 'sessions that name no split'} ({lesson.workload}); "
                "what is measured must not have been learnt from: prepare it with development sessions "
                "(`prepare split`)"
            )


def prepare_state(settings: EngineSettings, folder: Path) -> Path:
    """Make the state that a start begins with: an empty folder, or a copy of a prepared one.

    Args:
        folder: the run's; whatever an earlier start of the same run left in it is removed.

    Raises:
        EngineError: as ``check_state``, or the folder can't be written.
    """
    check_state(settings)
    state = folder / FOLDER
    try:
        if state.exists():
            shutil.rmtree(state)
        if settings.state == COLD:
            state.mkdir(parents=True)
        else:
            shutil.copytree(_prepared(settings), state)
    except (OSError, shutil.Error) as error:
        raise EngineError(f"{state}: {error}; free some space, or see who owns it") from error
    return state


def note_lesson(state: Path, lesson: Lesson) -> None:
    """Say in the state folder who taught it, besides those of the state it began with."""
    lessons = [*read_lessons(state), lesson]
    (state / TAUGHT_BY).write_text(json.dumps([asdict(one) for one in lessons], indent=1) + "\n")


def read_lessons(state: Path) -> list[Lesson]:
    """Who taught it; nobody when no file says so.

    Raises:
        EngineError: a file that is none of ours.
    """
    path = state / TAUGHT_BY
    try:
        rows: list[Mapping[str, Any]] = json.loads(path.read_bytes())
        return [Lesson(**row) for row in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise EngineError(f"{path}: can't be read ({error}); prepare the state again") from error


def _prepared(settings: EngineSettings) -> Path:
    return Path(settings.state.removeprefix(WARM)).expanduser().absolute()
