"""How a command ends that can't be done as asked, and its exit codes."""

import sys

FAILED, USAGE = 1, 2


def complain(error: object) -> int:
    """Say in one line what is wrong; return the exit code of what can't be done as asked."""
    print(f"replay: {error}", file=sys.stderr)
    return USAGE
