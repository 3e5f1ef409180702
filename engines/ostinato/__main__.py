"""The command line: ``python -m engines.ostinato serve --model DIR``, ``plan``, ``calibrate``, ``explain``."""

import argparse
import sys
from importlib.metadata import version

from engines.ostinato.calibrate_command import add_calibrate
from engines.ostinato.command_line import OneLineParser
from engines.ostinato.commands import add_explain, add_plan
from engines.ostinato.errors import SetupError
from engines.ostinato.serve_command import add_serve


def main(arguments: list[str] | None = None) -> int:
    """Do one command; 2 for what the user can put right."""
    args = _parser().parse_args(arguments)
    try:
        code: int = args.run(args)
    except SetupError as error:
        print(f"ostinato: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="ostinato",
        description="Serves mixture-of-experts models that do not fit the GPU to one agent session at a time.",
        epilog="example: python -m engines.ostinato serve --model models/tiny --port 8080",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser
    )
    for add in (add_serve, add_plan, add_calibrate, add_explain):
        add(commands)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked: the engine also runs from a checkout that was never installed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(0, f"ostinato {version('ostinato-replay')}\n")


if __name__ == "__main__":
    sys.exit(main())
