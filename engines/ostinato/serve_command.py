"""``serve``: loads a model, says how far it is, answers over HTTP."""

import argparse
import gc
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from engines.ostinato.backend import Backend, Decodes
from engines.ostinato.command_line import (
    Steps,
    Whole,
    add_engine_options,
    engine_options,
    path_or_none,
    set_environment,
)
from engines.ostinato.errors import SetupError
from engines.ostinato.serving import serve

if TYPE_CHECKING:
    from engines.ostinato.chat.request import Chat
    from engines.ostinato.engine import Engine
    from engines.ostinato.recording import Recorder

_PATHS = ("auto", "split", "upload", "cooperative")
_EXAMPLES = """examples:
  python -m engines.ostinato serve --model models/tiny --port 8080
  python -m engines.ostinato serve --model DIR --vram-budget 16GiB --residency residency.json \\
      --calibration calibration.json
  python -m engines.ostinato serve --model DIR --vram-budget 16GiB --placement lru_cache:largest_pass=32
  python -m engines.ostinato serve --model DIR --record-routes routes.npz   # then: plan --counts routes.npz
  curl -s http://127.0.0.1:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}]}'
"""


def add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``serve`` to a program's commands; ``run_serve`` does it."""
    command = commands.add_parser(
        "serve",
        help="answer completions and chats over HTTP",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=Whole(0, 65535), default=8080, help="0 takes a free one (%(default)s)")
    add("--queue", type=Whole(0), default=8, metavar="N", help="requests that may wait (%(default)s)")
    add_engine_options(command)
    add(
        "--placement",
        default="ostinato",
        metavar="NAME[:key=value,…]",
        help="who is resident and what a miss does (%(default)s); none computes a plain transformers model",
    )
    add("--calibration", type=path_or_none, metavar="FILE", help="what calibrate wrote: where prefill paths cross")
    add("--prefill-path", choices=_PATHS, default="auto", help="instead of the placement's own (%(default)s)")
    add("--record-routes", type=path_or_none, metavar="FILE", help="write down the experts that requests went to")
    add("--workload-hash", default="", metavar="HASH", help="names the sessions in the recorded routes")
    command.set_defaults(run=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM.

    Raises:
        SetupError: what the user can put right.
    """
    from engines.ostinato import gguf_header  # with NumPy, which --help does without

    _try_port(args.host, args.port)
    set_environment()
    say = Steps()
    try:
        backend, recorder = _load(args, say)
        chat = _chat(args)
        gguf_header.forget()  # what it says has been taken
        gc.collect()
        gc.freeze()  # a collection that walks the modules would show up as a slow token
    finally:
        say.end()
    print(f"loaded {args.model} in {say.seconds:.1f} s", flush=True)
    after_request: Callable[[], None] = recorder.after_request if recorder else lambda: None
    serve(backend, host=args.host, port=args.port, queue_limit=args.queue, chat=chat, after_request=after_request)
    gc.unfreeze()
    if recorder is not None:
        recorder.write()
    return 0


def _load(args: argparse.Namespace, say: Steps) -> tuple[Backend, "Recorder | None"]:
    say("importing PyTorch")
    import torch  # after the environment is set; and --help stays fast

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.placement == "none":
        if args.record_routes:
            raise SetupError("--record-routes needs the engine's own experts; leave --placement none out")
        from engines.ostinato.reference import load

        say("loading a plain transformers model")
        plain = load(args.model, context=args.context, device=args.device, dtype=args.dtype)
        _warm_up(plain)
        plain.reset()
        return plain, None
    from engines.ostinato.assembly import open_engine

    engine = open_engine(engine_options(args), say)
    for group in engine.groups:
        group.shares.path = args.prefill_path
    say("warming up")
    _warm_up(engine)
    engine.reset()
    return engine, _recorder(args, engine)


def _recorder(args: argparse.Namespace, engine: "Engine") -> "Recorder | None":
    if args.record_routes is None:
        return None
    from engines.ostinato.planner import model_shape
    from engines.ostinato.recording import Recorder

    if not args.record_routes.absolute().parent.is_dir():
        raise SetupError(f"--record-routes {args.record_routes}: there is no such folder; make it first")
    shape = model_shape.read(args.model)
    return Recorder(
        engine,
        args.record_routes,
        per_token=shape.experts_per_token,
        model_hash=shape.model_hash,
        workload_hash=args.workload_hash,
    )


def _chat(args: argparse.Namespace) -> "Chat | None":
    from engines.ostinato.chat import request

    try:
        return request.read(args.model)
    except SetupError as error:
        print(f"ostinato: no chat completions: {error}", file=sys.stderr, flush=True)
        return None


def _warm_up(backend: Backend) -> None:
    """First calls set kernels up."""
    first = backend.prefill([0] * max(1, min(8, backend.context - 2))).next_id
    if isinstance(backend, Decodes):
        for _ in backend.decode(first, min(2, backend.context - 2), None):
            pass
    else:
        backend.step(first)


def _try_port(host: str, port: int) -> None:
    """A taken port should be said now, not after the model was loaded."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SetupError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
