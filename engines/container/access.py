"""Whose the files are that an engine in a container writes."""

import os
from pathlib import Path


def let_write(user: str, paths: list[Path]) -> None:
    """Where root runs the harness, give what the engine writes to the other user that runs inside."""
    owner, _, group = user.partition(":")
    if os.geteuid() or not owner.isdigit() or owner == "0":
        return
    for path in paths:
        for one in (path, *(path.rglob("*") if path.is_dir() else ())):
            os.chown(one, int(owner), int(group) if group.isdigit() else -1, follow_symlinks=False)
