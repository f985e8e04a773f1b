"""Builder of llama-server's arguments, the same for servers, plans, the engine's memory estimate, exports and tunes.

On a GPU, all layers (`--gpu-layers 99`) and flash attention (`--flash-attn on`) are requested, because memory estimates
assume both. By default llama-server (common/fit.cpp, b11434) silently moves layers to the CPU if less than 1,024 MiB
would stay free: a plan that leaves 500 MiB would run several times slower than predicted. With a given number of
layers, `--fit` changes nothing but prints the memory tables that `engine/engine_estimate.py` reads, so it stays on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from launcher.engine.builds.build import BUILT_IN, EngineBuild
from launcher.engine.serve_options import ServeOptions
from launcher.models.drafters import STABLE_SPEC_TYPES
from launcher.models.memory import PlanSettings
from launcher.models.server_settings import ROWS, ServerSetting, Value

DEFAULT_BATCH = 2_048
"""llama-server's default batch in tokens (common/common.h); a ubatch must not exceed the batch."""
SERVER_FLAGS: Mapping[str, str | None] = {
    "--metrics": None,
    "--cors-origins": "localhost",  # the default allows any web page to send requests to the server
}
"""Arguments of every server, left out if the build lacks the flag; None for a switch."""
START_FLAGS: Mapping[str, bool] = {
    "--host": True,
    "--port": True,
    "--alias": True,
    "--api-key": True,
    "--api-key-file": True,
    "--slot-save-path": True,
    "--no-cache-idle-slots": False,
    "--verbosity": True,
    "--log-colors": True,
    "--log-file": True,
    "--log-jsonl": False,
    "--no-log-jsonl": False,
    "--log-disable": False,
}
"""Flags that vary between starts with the same settings (address, key, logging), and whether a value follows."""
_GPU_LAYERS = "99"
_FILE_FLAGS: Mapping[str, str] = {"mmproj": "--mmproj", "chat_template_file": "--chat-template-file"}
"""Flags of additional files, by the field of ServeOptions."""
LLAMA_SERVER = EngineBuild(
    "llama-server",
    ("llama-server",),
    "",
    frozenset(
        {
            *(flag for row in ROWS.values() for flag in row.flags),
            *_FILE_FLAGS.values(),
            *SERVER_FLAGS,
            *START_FLAGS,
            "--model",
            "--gpu-layers",
            "--flash-attn",
            "--batch-size",
            "--device",
            "--rpc",
            "--spec-draft-model",
            "--embeddings",
            "--reranking",
        }
    ),
    spec_types=STABLE_SPEC_TYPES,
)
"""A stand-in with the flags of llama-server b11434 to b11669, for plans without an installed build or for another
computer."""

Argument = tuple[str, str | None]
"""A flag and its value; None for a switch."""


def server_arguments(options: ServeOptions, build: EngineBuild, *, gpu: bool) -> list[str]:
    """Return the arguments with which `build` serves `options`, without START_FLAGS; extra arguments come last.

    `gpu` is whether the engine computes on a GPU. Settings equal to llama-server's default are left out. Raises
    EngineUnsuitable if the build lacks a required flag.
    """
    required = [("--model", str(options.model)), *_setting_arguments(options, build, gpu=gpu)]
    build.require_flags(*(flag for flag, _ in required))
    if options.drafter.drafts:
        build.require_drafters(*_spec_types(options))
    optional = [(flag, value) for flag, value in SERVER_FLAGS.items() if flag in build.flags]
    return [word for argument in (*required, *optional) for word in argument if word is not None] + [*options.extra]


def planned_options(settings: PlanSettings, options: ServeOptions) -> ServeOptions:
    """Return `options` with the server settings of a plan or memory estimate."""
    return replace(options, **{row.attribute: row.value_in(settings) for row in ROWS.values()})


def _setting_arguments(options: ServeOptions, build: EngineBuild, *, gpu: bool) -> Iterator[Argument]:
    for row in ROWS.values():
        if row.always:
            yield from _row_arguments(row, row.value_in(options))
    if gpu and build.name != BUILT_IN and "--gpu-layers" in build.flags:
        yield "--gpu-layers", _GPU_LAYERS
    if options.no_gpu and build.name != BUILT_IN:
        yield "--device", "none"  # without it, a GPU build uses every GPU it finds
    yield from _row_arguments(ROWS["kv"], options.kv)
    # llama.cpp needs flash attention for a quantised V cache, so that a build without the flag is refused then.
    if _differs_from_default(ROWS["kv"], options.kv) or "--flash-attn" in build.flags:
        yield "--flash-attn", "on"
    for row in ROWS.values():
        if not (row.always or row.drafting or row.name in ("kv", "draft")):
            yield from _row_arguments(row, row.value_in(options))
    if (options.ubatch or 0) > DEFAULT_BATCH:
        yield "--batch-size", str(options.ubatch)
    if options.drafter.drafts:
        yield from _drafting_arguments(options)
    if options.reranking:
        yield "--reranking", None
    elif options.embeddings:
        yield "--embeddings", None
    for field, flag in _FILE_FLAGS.items():
        if (path := getattr(options, field)) is not None:
            yield flag, str(path)
    if options.rpc:
        yield "--rpc", ",".join(options.rpc)


def _drafting_arguments(options: ServeOptions) -> Iterator[Argument]:
    drafter = options.drafter
    yield "--spec-type", ",".join(_spec_types(options))
    if drafter.takes_length:  # n-gram drafts have separate length settings
        yield from _row_arguments(ROWS["draft"], options.draft)
    if drafter.source == "file":
        yield "--spec-draft-model", str(options.used_draft_file)
    for row in ROWS.values():
        if drafter.takes_setting(row.drafting) and "--spec-type" not in row.flags:
            yield from _row_arguments(row, row.value_in(options))


def _spec_types(options: ServeOptions) -> tuple[str, ...]:
    """Return what drafts, as --spec-type calls it: the drafter, and repeats of text besides it."""
    also = (options.ngram,) if options.ngram and _differs_from_default(ROWS["ngram"], options.ngram) else ()
    return tuple(dict.fromkeys((options.drafter.spec_type, *also)))


def _row_arguments(row: ServerSetting, value: Value) -> Iterator[Argument]:
    if not (row.always or _differs_from_default(row, value)):
        return
    if row.kind == "switch":
        on, off = row.flags
        yield (on if value else off), None
    else:
        for flag in row.flags:
            yield flag, str(value)


def _differs_from_default(row: ServerSetting, value: Value) -> bool:
    return value is not None and value != row.usual
