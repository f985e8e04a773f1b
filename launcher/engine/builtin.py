"""The built-in engine: the real llama.cpp server of the `xllamacpp` wheel, as a command with llama-server's flags.

    python -P builtin.py --model FILE [flags of llama-server]

It stands alone (nothing of ours is imported) and answers `--help`, `--version` and `--list-devices` like
llama-server, so one probe serves both.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_EXIT_LINE = b"cmd_router_to_child:exit"
_PARENT_PROTOCOL = "LLAMA_SERVER_ROUTER_PORT"
_KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

Setter = Callable[[Any, Any, Any], None]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            message = f"invalid argument: {message.removeprefix('unrecognized arguments: ').split()[0]}"
        print(f"error: {message}", file=sys.stderr, flush=True)
        sys.exit(1)


def _attribute(path: str) -> Setter:
    """Return a setter for a dotted attribute of CommonParams."""
    *parents, name = path.split(".")

    def assign(_engine: Any, params: Any, value: Any) -> None:  # noqa: ANN401 -- untyped extension module
        for parent in parents:
            params = getattr(params, parent)
        setattr(params, name, value)

    return assign


def _enum(path: str, enum: str, prefix: str) -> Setter:
    assign = _attribute(path)

    def choose(engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
        assign(
            engine, params, getattr(getattr(engine, enum), prefix + value.upper().replace("-", "_").replace("+", "_"))
        )

    return choose


def _flash_attention(engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    names = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
    params.flash_attn_type = getattr(engine.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{names[value]}")


def _speculation(engine: Any, params: Any, value: list[str]) -> None:  # noqa: ANN401
    kinds = engine.common_speculative_type
    names = [name for part in value for name in part.split(",") if name != "none"]
    try:
        types = [getattr(kinds, "COMMON_SPECULATIVE_TYPE_" + name.upper().replace("-", "_")) for name in names]
    except AttributeError:
        raise ValueError(f"unknown speculative type: {', '.join(names)}") from None
    if types:
        params.speculative.types = types


def _cors(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    params.cors_origins = value
    params.cors_origins_explicit = True


def _key_file(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    with open(value, encoding="utf-8") as file:  # noqa: PTH123 -- pathlib is a slow import here
        params.api_keys = [*params.api_keys, *filter(None, map(str.strip, file))]


def _fit_target(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    margins = [int(part) << 20 for part in value.split(",")]
    params.fit_params_target = margins * len(params.fit_params_target) if len(margins) == 1 else margins


def _gpu_layers(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    params.n_gpu_layers = {"auto": -1, "all": -2}.get(value) or int(value)


def _parser() -> _Parser:
    parser = _Parser(prog="llama-server (built-in)", allow_abbrev=False, argument_default=argparse.SUPPRESS)
    on_off = ("on", "off")

    def flag(*names: str, to: str | Setter, **details: Any) -> None:  # noqa: ANN401 -- argparse's own keywords
        action = parser.add_argument(*names, **details)
        action.setter = to if callable(to) else _attribute(to)  # type: ignore[attr-defined]

    parser.add_argument("--version", action="store_true", help="print the version and leave")
    parser.add_argument("--list-devices", action="store_true", help="print the devices and leave")
    flag("-m", "--model", to="model.path", help="GGUF file")
    flag("-a", "--alias", to=lambda _e, p, v: setattr(p, "model_alias", {v}), help="name of the model in the API")
    flag("--host", to=lambda _e, p, v: setattr(p, "hostnames", [v]), help="address to listen on")
    flag("--port", to="port", type=int, help="port to listen on")
    flag("--api-key-file", to=_key_file, help="file with one API key a line")
    flag("--cors-origins", to=_cors, help="allowed origins")
    flag("--ui", to="ui", action="store_true", help="serve the web page")
    flag("--no-ui", to="ui", action="store_false", dest="ui")
    flag("--metrics", to="endpoint_metrics", action="store_true", help="serve /metrics")
    flag("--slots", to="endpoint_slots", action="store_true", help="serve /slots")
    flag("--no-slots", to="endpoint_slots", action="store_false", dest="slots")
    flag("-c", "--ctx-size", to="n_ctx", type=int, help="context in tokens, 0: as trained")
    flag("-n", "--n-predict", to="n_predict", type=int, help="most tokens to generate")
    flag("-np", "--parallel", to="n_parallel", type=int, help="slots")
    flag("-b", "--batch-size", to="n_batch", type=int, help="logical batch in tokens")
    flag("-ub", "--ubatch-size", to="n_ubatch", type=int, help="physical batch in tokens")
    flag("-t", "--threads", to="cpuparams.n_threads", type=int, help="threads for generation")
    flag("-tb", "--threads-batch", to="cpuparams_batch.n_threads", type=int, help="threads for prompts")
    flag("-ngl", "--gpu-layers", "--n-gpu-layers", to=_gpu_layers, help="layers on the GPU")
    flag("-fa", "--flash-attn", to=_flash_attention, choices=(*on_off, "auto"))
    for side in "kv":
        kv = _enum(f"cache_type_{side}", "ggml_type", "GGML_TYPE_")
        flag(f"-ct{side}", f"--cache-type-{side}", to=kv, choices=_KV_TYPES, help=f"type of the {side.upper()} cache")
        kv = _enum(f"speculative.draft.cache_type_{side}", "ggml_type", "GGML_TYPE_")
        flag(f"-ct{side}d", f"--spec-draft-type-{side}", to=kv, choices=_KV_TYPES)
    load_mode = _enum("load_mode", "llama_load_mode", "LLAMA_LOAD_MODE_")
    flag("-lm", "--load-mode", to=load_mode, choices=("auto", "none", "mmap", "mlock", "mmap+mlock"))
    flag("-fit", "--fit", to=lambda _e, p, v: setattr(p, "fit_params", v == "on"), choices=on_off)
    flag("-fitt", "--fit-target", to=_fit_target, help="margin in MiB")
    flag("-fitc", "--fit-ctx", to="fit_params_min_ctx", type=int)
    flag("-cram", "--cache-ram", to="cache_ram_mib", type=int, help="prompt cache in MiB of host memory")
    flag("-ctxcp", "--ctx-checkpoints", to="n_ctx_checkpoints", type=int)
    flag("--no-warmup", to="warmup", action="store_false", dest="warmup")
    flag("--sleep-idle-seconds", to="sleep_idle_seconds", type=int)
    flag("--spec-type", to=_speculation, action="append", help="none, draft-mtp, ngram-mod ...")
    flag("--spec-draft-n-max", to="speculative.draft.n_max", type=int, help="draft length")
    flag("--spec-draft-n-min", to="speculative.draft.n_min", type=int)
    flag("--spec-draft-p-min", to="speculative.draft.p_min", type=float)
    probabilistic = "speculative.draft.probabilistic"
    flag(
        "--spec-draft-sampling",
        to=lambda e, p, v: _attribute(probabilistic)(e, p, v == "probabilistic"),
        choices=("greedy", "probabilistic"),
    )
    rates = "speculative.synth_rates"
    flag("--spec-synth-rates", to=lambda e, p, v: _attribute(rates)(e, p, [float(x) for x in v.split(",")]))
    flag("-lv", "--verbosity", "--log-verbosity", to="verbosity", type=int, help="0 to 5")
    flag("--log-colors", to=lambda _e, _p, _v: None, choices=(*on_off, "auto"))
    return parser


def _watch_parent() -> None:
    """Follow the parent protocol on standard input: its exit line ends us, and so does its end.

    The engine would read the same input in a thread of its own, and its shutdown waits for open streams while
    it holds the GIL; so it gets a pipe that never ends in its place.
    """
    control = os.dup(0)
    silent, kept_open = os.pipe()
    os.dup2(silent, 0)
    os.set_inheritable(kept_open, False)

    def read() -> None:
        pending = b""
        while data := os.read(control, 4096):
            pending += data
            if _EXIT_LINE in pending:
                os._exit(0)
            pending = pending[-len(_EXIT_LINE) :]
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()


def _load_engine() -> Any:  # noqa: ANN401 -- untyped extension module
    try:
        import xllamacpp
    except ImportError as error:
        reason = str(error).rstrip(".")
        if sys.platform == "win32":
            reason += " (it needs the Microsoft Visual C++ Redistributable for x64)"
        print(f"error: the built-in engine cannot be loaded: {reason}", file=sys.stderr, flush=True)
        sys.exit(1)
    return xllamacpp


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server until SIGTERM, SIGINT or the parent's exit line; exit code 1 when it cannot start."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    if given.pop("version", False):
        from importlib.metadata import version

        print(f"version: xllamacpp {version('xllamacpp')}", file=sys.stderr)
        return
    engine = _load_engine()
    if given.pop("list_devices", False):
        print("Available devices:")
        kinds = engine.ggml_backend_dev_type
        gpu_kinds = (kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_IGPU)
        gpus = [device for device in engine.get_device_info() if device["type"] in gpu_kinds]
        for device in gpus:
            free, total = (int(device[key]) >> 20 for key in ("memory_free", "memory_total"))
            print(f"  {device['name']}: {device['description']} ({total} MiB, {free} MiB free)")
        if not gpus:
            print("  (none)")
        return
    if "model" not in given:
        parser.error("the built-in engine needs --model")
    params = engine.CommonParams()
    params.api_keys = [key for key in os.environ.get("LLAMA_API_KEY", "").split(",") if key]
    setters = {action.dest: action.setter for action in parser._actions if hasattr(action, "setter")}  # noqa: SLF001
    try:
        for name, value in given.items():
            setters[name](engine, params, value)
    except (ValueError, AttributeError, OSError) as error:
        parser.error(f'error while handling argument "--{name.replace("_", "-")}": {error}')
    if os.environ.get(_PARENT_PROTOCOL):
        _watch_parent()
    _serve(engine, params)


def _serve(engine: Any, params: Any) -> None:  # noqa: ANN401
    # The constructor blocks in C++ while the model loads; until it returns a signal must end the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = engine.Server(params)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)  # the ordinary way, which writes out the engine's last log lines
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.wait(0.5):  # with a limit, so that signals are seen on Windows too
        pass
    _leave_without_destructor(server)


def _leave_without_destructor(_server: object) -> NoReturn:
    """End at once: the server's destructor waits for open streams, and holds the GIL while it waits."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
