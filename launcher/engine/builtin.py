"""The built-in engine: a script that runs the llama.cpp server of the `xllamacpp` wheel with llama-server's flags.

    python -P builtin.py --model FILE [flags of llama-server]

It imports no other module of this program. `--help`, `--version` and `--list-devices` print the same as llama-server,
so that probe.py works for both.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_EXIT_LINE = b"cmd_router_to_child:exit"
"""Exit request of llama.cpp's router protocol, on standard input."""
_PARENT_PROTOCOL = "LLAMA_SERVER_ROUTER_PORT"
"""Environment variable that turns the router protocol on."""
_SPEC_TYPES = (
    *("none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"),
    *("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
)
_KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

Setter = Callable[[Any, Any, Any], None]
"""Applies a flag: gets the xllamacpp module, its CommonParams, and the flag's value."""


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports errors in llama-server's words, which the diagnosis recognizes."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            message = f"invalid argument: {message.removeprefix('unrecognized arguments: ').split()[0]}"
        print(f"error: {message}", file=sys.stderr, flush=True)
        sys.exit(1)


def _attribute_setter(path: str) -> Setter:
    """Return a function that sets a dotted attribute of CommonParams."""
    *parents, name = path.split(".")

    def assign(_engine: Any, params: Any, value: Any) -> None:  # noqa: ANN401 -- untyped extension module
        for parent in parents:
            params = getattr(params, parent)
        setattr(params, name, value)

    return assign


def _enum_setter(path: str, enum: str, prefix: str) -> Setter:
    """Return a function that sets a dotted attribute to the enum member for a flag's value, such as q8_0."""
    assign = _attribute_setter(path)

    def assign_member(engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
        name = prefix + value.upper().replace("-", "_").replace("+", "_")
        assign(engine, params, getattr(getattr(engine, enum), name))

    return assign_member


def _set_flash_attention(engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    names = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
    params.flash_attn_type = getattr(engine.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{names[value]}")


def _set_speculative_types(engine: Any, params: Any, value: list[str]) -> None:  # noqa: ANN401
    kinds = engine.common_speculative_type
    names = [name for part in value for name in part.split(",") if name != "none"]
    try:
        types = [getattr(kinds, "COMMON_SPECULATIVE_TYPE_" + name.upper().replace("-", "_")) for name in names]
    except AttributeError:
        raise ValueError(f"unknown speculative type: {', '.join(names)}") from None
    if types:
        params.speculative.types = types


def _set_cors_origins(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    params.cors_origins = value
    params.cors_origins_explicit = True


def _set_aliases(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    params.model_alias = set(value.split(","))


def _add_api_keys(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    with open(value, encoding="utf-8") as file:  # noqa: PTH123 -- pathlib is a slow import here
        params.api_keys = [*params.api_keys, *filter(None, map(str.strip, file))]


def _set_fit_target(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    margins = [int(part) << 20 for part in value.split(",")]
    params.fit_params_target = margins * len(params.fit_params_target) if len(margins) == 1 else margins


def _set_chat_template(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    with open(value, encoding="utf-8") as file:  # noqa: PTH123 -- pathlib is a slow import here
        params.chat_template = file.read()


def _set_slot_folder(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    if not os.path.isdir(value):  # noqa: PTH112
        raise ValueError(f"not a directory: {value}")
    params.slot_save_path = os.path.join(value, "")  # noqa: PTH118 -- the engine appends file names without a separator


def _serve_ranks(engine: Any, params: Any, _value: bool) -> None:  # noqa: ANN401
    params.embedding = True
    params.pooling_type = engine.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def _set_gpu_layers(_engine: Any, params: Any, value: str) -> None:  # noqa: ANN401
    params.n_gpu_layers = {"auto": -1, "all": -2}.get(value) or int(value)


def _make_parser() -> _Parser:
    parser = _Parser(prog="llama-server (built-in)", allow_abbrev=False, argument_default=argparse.SUPPRESS)
    on_off = ("on", "off")

    def add_flag(*names: str, to: str | Setter, **details: Any) -> None:  # noqa: ANN401 -- argparse's own keywords
        action = parser.add_argument(*names, **details)
        action.setter = to if callable(to) else _attribute_setter(to)  # type: ignore[attr-defined]

    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--list-devices", action="store_true", help="print the devices and exit")
    add_flag("-m", "--model", to="model.path", help="GGUF file")
    add_flag("-a", "--alias", to=_set_aliases, help="names of the model in the API")
    add_flag("--host", to=lambda _e, p, v: setattr(p, "hostnames", [v]), help="address to listen on")
    add_flag("--port", to="port", type=int, help="port to listen on")
    add_flag("--api-key-file", to=_add_api_keys, help="file with one API key a line")
    add_flag("--cors-origins", to=_set_cors_origins, help="allowed origins")
    add_flag("--ui", to="ui", action="store_true", help="serve the web page")
    add_flag("--no-ui", to="ui", action="store_false", dest="ui")
    add_flag("--metrics", to="endpoint_metrics", action="store_true", help="serve /metrics")
    add_flag("--slots", to="endpoint_slots", action="store_true", help="serve /slots")
    add_flag("--no-slots", to="endpoint_slots", action="store_false", dest="slots")
    add_flag("-c", "--ctx-size", to="n_ctx", type=int, help="context in tokens, 0: as trained")
    add_flag("-n", "--n-predict", to="n_predict", type=int, help="most tokens to generate")
    add_flag(
        "--ignore-eos", to="sampling.ignore_eos", action="store_true", help="never end a reply before its token limit"
    )
    add_flag("-np", "--parallel", to="n_parallel", type=int, help="slots")
    add_flag("-kvu", "--kv-unified", to="kv_unified", action="store_true", help="one KV cache for all slots")
    add_flag("-no-kvu", "--no-kv-unified", to="kv_unified", action="store_false", dest="kv_unified")
    add_flag("-b", "--batch-size", to="n_batch", type=int, help="logical batch in tokens")
    add_flag("-ub", "--ubatch-size", to="n_ubatch", type=int, help="physical batch in tokens")
    add_flag("-t", "--threads", to="cpuparams.n_threads", type=int, help="threads for generation")
    add_flag("-tb", "--threads-batch", to="cpuparams_batch.n_threads", type=int, help="threads for prompts")
    add_flag("-ngl", "--gpu-layers", "--n-gpu-layers", to=_set_gpu_layers, help="layers on the GPU")
    add_flag("-fa", "--flash-attn", to=_set_flash_attention, choices=(*on_off, "auto"))
    for side in "kv":
        kv = _enum_setter(f"cache_type_{side}", "ggml_type", "GGML_TYPE_")
        add_flag(
            f"-ct{side}", f"--cache-type-{side}", to=kv, choices=_KV_TYPES, help=f"type of the {side.upper()} cache"
        )
        kv = _enum_setter(f"speculative.draft.cache_type_{side}", "ggml_type", "GGML_TYPE_")
        add_flag(f"-ct{side}d", f"--spec-draft-type-{side}", to=kv, choices=_KV_TYPES)
    load_mode = _enum_setter("load_mode", "llama_load_mode", "LLAMA_LOAD_MODE_")
    add_flag("-lm", "--load-mode", to=load_mode, choices=("auto", "none", "mmap", "mlock", "mmap+mlock"))
    add_flag("-fit", "--fit", to=lambda _e, p, v: setattr(p, "fit_params", v == "on"), choices=on_off)
    add_flag("-fitt", "--fit-target", to=_set_fit_target, help="margin in MiB")
    add_flag("-fitc", "--fit-ctx", to="fit_params_min_ctx", type=int)
    add_flag("-cram", "--cache-ram", to="cache_ram_mib", type=int, help="prompt cache in MiB of host memory")
    add_flag(
        "--cache-idle-slots",
        to="cache_idle_slots",
        action="store_true",
        help="save idle slots to the prompt cache on a new task, and clear them if the KV cache is unified",
    )
    add_flag("--no-cache-idle-slots", to="cache_idle_slots", action="store_false", dest="cache_idle_slots")
    add_flag("-ctxcp", "--ctx-checkpoints", to="n_ctx_checkpoints", type=int)
    add_flag(
        "--moe-cache-mib", to=lambda _e, p, v: setattr(p, "moe_cache_size", v << 20), type=int, help="expert cache"
    )
    add_flag("-mm", "--mmproj", to="mmproj.path", help="file of the vision projector")
    add_flag("--chat-template-file", to=_set_chat_template, help="file with a chat template in place of the model's")
    add_flag("--embedding", "--embeddings", to="embedding", action="store_true", help="serve embeddings")
    pooling = _enum_setter("pooling_type", "llama_pooling_type", "LLAMA_POOLING_TYPE_")
    add_flag(
        "--pooling",
        to=pooling,
        choices=("none", "mean", "cls", "last", "rank"),
        help="how the vectors of a text become one",
    )
    add_flag("--rerank", "--reranking", to=_serve_ranks, action="store_true", help="serve /v1/rerank")
    add_flag("--slot-save-path", to=_set_slot_folder, help="folder where the states of slots are saved")
    add_flag("--no-warmup", to="warmup", action="store_false", dest="warmup")
    add_flag("--sleep-idle-seconds", to="sleep_idle_seconds", type=int)
    add_flag(
        "--spec-type", to=_set_speculative_types, action="append", metavar=",".join(_SPEC_TYPES), help="what drafts"
    )
    add_flag("-md", "--spec-draft-model", "--model-draft", to="speculative.draft.mparams.path", help="draft file")
    add_flag("-ngld", "--spec-draft-ngl", to="speculative.draft.n_gpu_layers", type=int, help="its layers on the GPU")
    add_flag("--spec-draft-n-max", to="speculative.draft.n_max", type=int, help="draft length")
    add_flag("--spec-draft-n-min", to="speculative.draft.n_min", type=int)
    add_flag("--spec-draft-p-min", to="speculative.draft.p_min", type=float)
    probabilistic = "speculative.draft.probabilistic"
    add_flag(
        "--spec-draft-sampling",
        to=lambda e, p, v: _attribute_setter(probabilistic)(e, p, v == "probabilistic"),
        choices=("greedy", "probabilistic"),
    )
    rates = "speculative.synth_rates"
    add_flag("--spec-synth-rates", to=lambda e, p, v: _attribute_setter(rates)(e, p, [float(x) for x in v.split(",")]))
    add_flag("--temp", "--temperature", to="sampling.temp", type=float, help="temperature of requests that set none")
    add_flag("--top-k", to="sampling.top_k", type=int)
    add_flag("--top-p", to="sampling.top_p", type=float)
    add_flag("--min-p", to="sampling.min_p", type=float)
    add_flag("--presence-penalty", to="sampling.penalty_present", type=float)
    add_flag("-lv", "--verbosity", "--log-verbosity", to="verbosity", type=int, help="0 to 5")
    add_flag("--log-colors", to=lambda _e, _p, _v: None, choices=(*on_off, "auto"))
    return parser


def _exit_with_parent() -> None:
    """End this process at the router protocol's exit line on standard input, and at its end of file.

    The engine would react to them as well, but its shutdown waits for open streams while it holds the GIL. So this
    function reads the real standard input, and the engine gets a pipe that never ends in its place.
    """
    control = os.dup(0)
    silent, write_end = os.pipe()
    os.dup2(silent, 0)
    os.set_inheritable(write_end, False)  # it stays open, so that the pipe never ends

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
    """Run the server until SIGTERM, SIGINT or the exit line; the exit code is 1 if it cannot start."""
    parser = _make_parser()
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
        _exit_with_parent()
    _run_server(engine, params)


def _run_server(engine: Any, params: Any) -> None:  # noqa: ANN401
    # The constructor blocks in C++ while the model loads, so a Python signal handler could not run until it returns.
    # With the default handler SIGINT ends the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = engine.Server(params)
    except RuntimeError as error:
        _flush_log(engine)
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.wait(0.5):  # with a timeout, because on Windows a wait without one blocks signal handlers
        pass
    _exit_without_destructor(server)


def _flush_log(engine: Any) -> None:  # noqa: ANN401
    """Wait until the engine's log thread has written its lines, of which the last ones name the cause of a failure.

    A busy computer may not have run that thread yet, and the end of the process does not wait for it. Where the wheel
    does not export llama.cpp's function (Windows), this does nothing.
    """
    import ctypes

    library = ctypes.CDLL(engine.xllamacpp.__file__)
    try:
        main_log, flush = library._Z15common_log_mainv, library._Z16common_log_flushP10common_log  # noqa: SLF001
    except AttributeError:
        return
    main_log.restype = ctypes.c_void_p
    flush.argtypes, flush.restype = [ctypes.c_void_p], None
    flush(main_log())


def _exit_without_destructor(_server: object) -> NoReturn:
    """Exit at once: the server's destructor would wait for open streams while holding the GIL."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
