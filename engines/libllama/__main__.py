"""Serves a GGUF model through a prebuilt libllama, with ``forced_tokens``."""

import argparse
import sys
from pathlib import Path

from engines.base import EngineError
from engines.libllama.backend import LibllamaBackend
from engines.libllama.library import load
from engines.libllama.wheels import WHEELS
from engines.ostinato.serving import serve

_EXAMPLE = r"""Where the cores have other work too, set OMP_WAIT_POLICY=passive: threads that spin while they
wait make it many times slower there.

example:
  python -m engines.libllama --backend llamacpp --model tiny.gguf --port 8080 --context 8192 --threads 2
  curl -s http://127.0.0.1:8080/v1/completions \
    -d '{"prompt": [1, 2, 3], "max_tokens": 4, "forced_tokens": [5, 6, 7, 8]}'
"""


def main() -> int:
    """Run the server until SIGTERM; 2 for what the user can put right."""
    arguments = _parser().parse_args()
    wheel = WHEELS[arguments.backend]
    try:
        api = load(arguments.backend)
        if arguments.version:
            print(f"{wheel.label} from {wheel.distribution} {wheel.version}, {wheel.build}; {api.system_info()}")
            return 0
        if arguments.model is None:
            raise EngineError("no model; name a GGUF file with --model")
        with LibllamaBackend(
            api,
            arguments.model,
            name=arguments.backend,
            context=arguments.context,
            threads=arguments.threads,
            batch=arguments.batch,
            ubatch=arguments.ubatch,
        ) as backend:
            _serve(backend, arguments.host, arguments.port)
    except EngineError as error:
        print(f"engines.libllama: {error}", file=sys.stderr)
        return 2
    return 0


def _serve(backend: LibllamaBackend, host: str, port: int) -> None:
    try:
        serve(backend, host=host, port=port)
    except OSError as error:
        raise EngineError(f"{host}:{port}: {error.strerror}; choose another --port") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engines.libllama",
        description=__doc__,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", required=True, choices=sorted(WHEELS), help="whose kernels compute")
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    parser.add_argument("--context", type=_positive, default=32768, help="most tokens of prompt and output together")
    parser.add_argument("--threads", type=_positive, default=2)
    parser.add_argument("--batch", type=_positive, default=2048, help="most tokens of one decode call")
    parser.add_argument("--ubatch", type=_positive, default=512, help="tokens that are computed together")
    parser.add_argument("--version", action="store_true", help="print package, build, instruction sets")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
