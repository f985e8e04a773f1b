"""From what a user asks to the command that is started: checks first, then arguments the build knows."""

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from launcher.base.errors import BadOption, EngineUnsuitable, LauncherError, ModelHasNoHead
from launcher.base.words import part
from launcher.engine.arguments import USUAL_BATCH
from launcher.engine.build import BUILT_IN, Build, find_on_path, list_devices, probe
from launcher.engine.endpoint import Endpoint
from launcher.engine.environment import engine_environment
from launcher.engine.installed import current, is_built_in_chosen
from launcher.engine.known_bad import build_number, fault_of
from launcher.engine.process import Command
from launcher.machine.engine_view import is_gpu
from launcher.models.compute import Backend
from launcher.models.gguf import GgufModel, check_complete, read_model
from launcher.models.limits import beyond_training, check_kv, check_limits, check_range, check_rpc
from launcher.models.memory import KV_TYPES, Setting

DEFAULT_CONTEXT = 8_192
DEFAULT_DRAFT = 2
"""The draft length that won most often in published measurements of the 35B MoE and of dense 27B models."""
_MOST_THREADS = 512
"""GGML_MAX_N_THREADS (ggml.h)."""
_OURS = {
    "--port": "Put --port before the --.",
    "--host": "The server listens on 127.0.0.1 only; `serve --lan` shares it with the network.",
    "--model": "Put --model before the --.",
    "--api-key": "A port keeps the key that was made for it; `mtp-launcher status --json` tells it.",
    "--ssl-key-file": "The server listens without TLS; for that put a reverse proxy before it.",
    "--api-prefix": "The server answers at /v1.",
}
"""What the user's own arguments cannot change: where the server is looked for, and how to say it instead."""
_ALIASES = {
    "-m": "--model",
    "-hf": "--model",
    "-hfr": "--model",
    "--hf-repo": "--model",
    "-mu": "--model",
    "--model-url": "--model",
    "--api-key-file": "--api-key",
    "--ssl-cert-file": "--ssl-key-file",
}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, and how. `engine` None leaves the choice to us, `context` None to DEFAULT_CONTEXT.

    `draft` is the draft length in tokens; 0 is MTP off. `draft_file` is the draft where it lies in a file of its own,
    `spec_type` how that is used. `threads`, `kv`, `ubatch` and `n_cpu_moe` None leave it to the
    engine. `rpc` are llama.cpp's RPC workers as HOST:PORT, whose devices it uses beside its own. `extra` are arguments
    of the user's own, put last as they are.
    """

    model: Path
    engine: Path | None = None
    built_in: bool = False
    context: int | None = None
    draft: int = DEFAULT_DRAFT
    slots: int = 1
    threads: int | None = None
    alias: str | None = None
    kv: str | None = None
    ubatch: int | None = None
    n_cpu_moe: int | None = None
    extra: tuple[str, ...] = ()
    draft_file: Path | None = None
    spec_type: str = "draft-mtp"
    rpc: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that is ready to be started, and what it starts. `note` is what to know of its settings, or empty."""

    command: Command
    build: Build
    header: GgufModel
    context: int
    options: ServeOptions
    note: str = ""

    def setting(self, backend: Backend) -> Setting:
        """Return what the memory formula needs to know of it; arguments behind `--` are not counted."""
        return Setting(
            context=self.context,
            kv=self.options.kv or "f16",
            draft=self.options.draft,
            ubatch=self.options.ubatch or 512,
            slots=self.options.slots,
            n_cpu_moe=self.options.n_cpu_moe or 0,
            backend=backend,
        )


def check_options(options: ServeOptions) -> None:
    """Raise BadOption for a value that no engine could use."""
    check_limits(
        context=options.context,
        draft=options.draft,
        ubatch=options.ubatch,
        n_cpu_moe=options.n_cpu_moe,
        slots=options.slots,
    )
    # With more threads than processors each waits for others that do not run.
    check_range("--threads", options.threads, 1, os.cpu_count() or _MOST_THREADS, "threads, one for each processor")
    check_rpc(options.rpc)
    for word in options.extra:
        flag = word.split("=")[0]
        flag = flag.replace("_", "-") if flag.startswith("--") else flag  # as llama.cpp reads them
        if hint := _OURS.get(_ALIASES.get(flag, flag)):
            raise BadOption(f"{flag} cannot be set behind the --: the launcher sets it.", hint, option=flag)


def check_model(options: ServeOptions) -> GgufModel:
    """Read the model's header, of a split model those of all parts.

    Raises ModelMissing, ModelBroken or ModelHasNoHead when it cannot be served.
    """
    header = _header_of(options.model)
    check_complete(*header.parts)
    if options.draft and options.draft_file is None and not header.has_mtp_head:
        why = (
            part("its metadata promises one, but the tensors are not there")
            if header.promised_heads
            else part("no MTP tensors")
        )
        raise ModelHasNoHead(
            f"{options.model.name} has no MTP head ({why}).",
            "Start it with --draft 0, or get a file with the head (its repository is often called ...-MTP-GGUF).",
            path=str(options.model),
        )
    return header


def _header_of(model: Path) -> GgufModel:
    """Read a header, once for as long as the file does not change."""
    try:
        stat = model.stat()
    except OSError:
        return read_model(model)  # which names the reason
    return _kept_header(model, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _kept_header(model: Path, _size: int, _modified_ns: int) -> GgufModel:
    return read_model(model)


async def choose_build(options: ServeOptions) -> Build:
    """Return the build to use: the one named, the one put in use, a llama-server on PATH that sees a GPU, the built-in.

    Raises EngineMissing when the one in use is gone.
    """
    if options.engine is not None:
        return await probe(options.engine)
    if options.built_in or is_built_in_chosen():
        return await probe(None)
    chosen = current()
    if chosen is not None:
        return await probe(chosen.program)
    on_path = find_on_path()
    if on_path is not None:
        with suppress(LauncherError):  # one that does not work is doctor's business, not this start's
            build = await probe(on_path)
            if any(map(is_gpu, await list_devices(build))):
                return build
    return await probe(None)


async def plan(options: ServeOptions, endpoint: Endpoint) -> Launch:
    """Check everything that can be checked before a process is started, and return the command.

    Raises a LauncherError that names what is wrong; nothing is left behind.
    """
    check_options(options)
    header = await asyncio.to_thread(check_model, options)
    options = replace(options, model=Path(header.parts[0].path))  # an engine takes a split model by its first part
    build = await choose_build(options)
    context = options.context or min(DEFAULT_CONTEXT, header.trained_context or DEFAULT_CONTEXT)
    arguments = _arguments(options, endpoint, build, context)
    environment = engine_environment(api_key=endpoint.api_key, reports_loading=True) | dict(build.environment)
    folder = options.model.absolute().parent
    command = Command((*build.command, *arguments), environment, folder)
    notes = [beyond_training(header.trained_context, context), _known_fault(build) if options.draft else ""]
    return Launch(command, build, header, context, options, " ".join(filter(None, notes)))


def _known_fault(build: Build) -> str:
    fault = fault_of(build_number(build.version))
    return f"This build is known to be bad: {fault.reason}. Take b{fault.mended} or newer." if fault else ""


def name_of(options: ServeOptions) -> str:
    """Return the model's name in the API: the alias, or the file's name made fit for a command line."""
    name = options.alias or options.model.stem.encode("utf-8", "replace").decode()
    return name.replace(",", " ").lstrip("-").strip() or "model"


def _arguments(options: ServeOptions, endpoint: Endpoint, build: Build, context: int) -> list[str]:
    needed = {
        "--model": str(options.model.absolute()),
        "--host": endpoint.host,
        "--port": str(endpoint.port),
        "--parallel": str(options.slots),
        "--ctx-size": str(context),
    }
    if options.draft:
        needed |= {"--spec-type": options.spec_type, "--spec-draft-n-max": str(options.draft)}
    if options.draft and options.draft_file:
        needed |= {"--spec-draft-model": str(options.draft_file.absolute())}
    if options.threads:
        needed |= {"--threads": str(options.threads)}
    if options.kv:
        owner = f"The engine {build.name} ({build.version}) has"
        check_kv(options.kv, sorted(build.kv_types) or tuple(KV_TYPES), owner=owner)
        needed |= {"--cache-type-k": options.kv, "--cache-type-v": options.kv, "--flash-attn": "on"}
    if options.ubatch:
        needed |= {"--ubatch-size": str(options.ubatch)}
    if (options.ubatch or 0) > USUAL_BATCH:
        needed |= {"--batch-size": str(options.ubatch)}
    if options.rpc:
        needed |= {"--rpc": ",".join(options.rpc)}
    if options.n_cpu_moe:
        _check_has_gpus(build)
        needed |= {"--gpu-layers": "99", "--n-cpu-moe": str(options.n_cpu_moe)}
    build.require(*needed, "--metrics")
    welcome: dict[str, str | None] = {
        "--alias": name_of(options),
        "--cors-origins": "localhost",  # else any web page may drive the server
        "--no-ui": None,
        "--log-colors": "off",
        "--verbosity": "4",  # buffers, offloaded layers and draft statistics are not printed below 4
    }
    known = {flag: value for flag, value in welcome.items() if flag in build.flags}
    arguments = ["--metrics"]
    for flag, value in (*needed.items(), *known.items()):
        arguments += [flag] if value is None else [flag, value]
    return [*arguments, *options.extra]


def _check_has_gpus(build: Build) -> None:
    if build.name == BUILT_IN:
        raise EngineUnsuitable(
            "The built-in engine computes on the processor only, so all experts are in host memory already.",
            "Leave --n-cpu-moe out. To use a GPU, name a llama-server that was built for it with --engine.",
            option="--n-cpu-moe",
        )
