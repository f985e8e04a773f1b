"""Preparation of a server start: checks the options, chooses the engine build, and makes the command line."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher.base.errors import (
    BadOption,
    EngineUnsuitable,
    GeometryUnknown,
    LauncherError,
    ModelHasNoHead,
)
from launcher.base.messages import FaceName, join_messages, mark, message
from launcher.engine.arguments import server_arguments
from launcher.engine.builds.build import BUILT_IN, EngineBuild, find_llama_server_on_path
from launcher.engine.builds.flags import Flag
from launcher.engine.builds.installed import engine_in_use, is_built_in_chosen
from launcher.engine.builds.known_bad import build_number, find_known_fault
from launcher.engine.builds.probe import list_devices, list_devices_once, probe_engine
from launcher.engine.environment import engine_environment
from launcher.engine.serve_options import ServeOptions, check_files, check_options, fallback_context
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.process import EngineCommand
from launcher.machine.engine_devices import is_gpu
from launcher.machine.machine import Machine, read_machine
from launcher.models.catalogue_load import load_catalogue
from launcher.models.compute_buffers import Backend
from launcher.models.fitting import choose_host_limits
from launcher.models.geometry import read_geometry
from launcher.models.gguf import GgufModel, check_complete, isolate_head, read_model
from launcher.models.library import find_entry
from launcher.models.limits import no_head_error, training_warning
from launcher.models.memory import KV_TYPES, DraftModel, PlanSettings, check_kv, estimate_memory
from launcher.models.read_situation import ServerMemory, make_situation
from launcher.models.server_settings import ROWS, Value, name_setting, to_fields
from launcher.models.side_files import find_mismatch, foreign_draft_error
from launcher.models.situation import Situation
from launcher.models.weights import read_weights

_ALIAS = Flag(("--alias", "-a"), "NAMES")
_EMBEDDING = Flag(("--embedding", "--embeddings"))
_RERANKING = Flag(("--reranking", "--rerank"))
_KEEPS_SLOTS = "--no-cache-idle-slots"


@dataclass(frozen=True, slots=True)
class Launch:
    """A server start that is ready to be run.

    `options` are the requested settings. `context` (tokens) and `limits` (of host memory and threads, by setting name)
    are the values chosen for settings that `options` leaves open. `note` is a warning about the settings, or empty.
    """

    command: EngineCommand
    build: EngineBuild
    header: GgufModel = field(metadata={"key": None})  # another process reads it in the model's file
    context: int
    options: ServeOptions
    note: str = ""
    limits: Mapping[str, Value] = field(default_factory=dict)

    def plan_settings(self, backend: Backend) -> PlanSettings:
        """Return the settings for a memory estimate of this start. The user's extra arguments are ignored."""
        return plan_settings_of(self.resolved, backend)

    @property
    def state_key(self) -> str:
        """A name for the kind of state in this engine's slots: engines with the same one can exchange them.

        llama.cpp itself takes the slot of another quantisation of the same model without an error.
        """
        model = self.options.model.stat()
        kind = [str(self.options.model), model.st_size, model.st_mtime_ns, *self.build.command, self.build.version]
        # A slot's file names the caches of its engine: one for each slot, or one for all.
        caches = 1 if self.options.kv_unified else self.options.slots or 1
        kind += [self.options.kv or "f16", self.options.no_gpu, caches, *self.options.extra]
        draft = self.options.used_draft_file
        if draft is not None and self.options.drafter.needs_whole_cache:
            side = draft.stat()
            kind += [self.options.drafter.spec_type, str(draft), side.st_size, side.st_mtime_ns]
        return hashlib.sha256(repr(kind).encode()).hexdigest()

    @property
    def resolved(self) -> ServeOptions:
        """The options with the values chosen for this start."""
        return replace(self.options, context=self.context, **to_fields(self.limits))


def check_model(options: ServeOptions) -> GgufModel:
    """Read and check the model's header; for a split model, the headers of all parts.

    Raises ModelMissing, ModelBroken or ModelHasNoHead if it cannot be served, ModelUnexpected if its draft cannot be.
    """
    header = _read_header(options.model)
    check_complete(*header.parts)
    if options.drafter.drafts and header.is_embedding:
        raise ModelHasNoHead(
            message("{name} generates no text, so there is nothing to draft.", name=options.model.name),
            message("Start it with {mtp_off}.", mtp_off=name_setting("draft", 0)),
            path=str(options.model),
        )
    draft, why = options.used_draft_file, None
    if draft is not None and not draft.exists():
        why = message("{file} is gone", file=draft)
    elif draft is not None and not options.drafter.uses_head:
        _check_draft(options, draft, header)
    if why or (options.drafter.drafts and not options.can_draft(head=header.has_mtp_head)):
        if options.drafter.source == "head" and header.promised_heads:
            why = message("its metadata lists one, but the tensors are missing")
        elif options.drafter.source == "head":
            why = message("no MTP tensors")
        listed, path = find_entry(load_catalogue(), options.model), str(options.model)
        raise no_head_error(options.model.name, options.drafter, listed=listed, why=why, path=path)
    return header


def _check_draft(options: ServeOptions, path: Path, header: GgufModel) -> None:
    """Raise ModelUnexpected for a draft that was made for another model: llama.cpp aborts with some, or drafts nothing.

    Raises ModelMissing or ModelBroken if it cannot be read.
    """
    side = _read_header(path)
    check_complete(*side.parts)
    why = find_mismatch(side, header, options.drafter.spec_type)
    # llama.cpp (b11549) says so and serves without drafts.
    if not why and options.p_min and side.metadata.get(f"{side.architecture}.has_confidence_head") is False:
        why = message("it has no confidence head, so that {p_min} must be 0", p_min=name_setting("p_min"))
    if why:
        raise foreign_draft_error(path, options.model.name, why)


def _read_header(model: Path) -> GgufModel:
    """Read a model header; cached until the file's size or modification time changes."""
    try:
        stat = model.stat()
    except OSError:
        return read_model(model)  # raises an error with the reason
    return _cached_header(model, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _cached_header(model: Path, _size: int, _modified_ns: int) -> GgufModel:
    return read_model(model)


async def choose_build(options: ServeOptions) -> EngineBuild:
    """Probe and return the engine build for a start.

    The first of these: the engine in `options`, the one in use, a llama-server on PATH that sees a GPU, the built-in
    one. Raises EngineMissing if the one in use no longer exists.
    """
    if options.engine is not None:
        return await probe_engine(options.engine)
    if options.built_in or is_built_in_chosen():
        return await probe_engine(None)
    chosen = engine_in_use()
    if chosen is not None:
        return await probe_engine(chosen.program)
    on_path = find_llama_server_on_path()
    if on_path is not None:
        with suppress(LauncherError):  # an engine on PATH that does not work is skipped here; `doctor` reports it
            build = await probe_engine(on_path)
            if options.no_gpu or any(map(is_gpu, await list_devices(build))):  # listing devices wakes a sleeping GPU
                return build
    return await probe_engine(None)


async def uses_gpu(build: EngineBuild, machine: Machine) -> bool:
    """Return whether a build will use a GPU: one that the drivers report, or else one in the build's device list."""
    if build.name == BUILT_IN:
        return False
    if make_situation(machine).backend != "cpu" or any(gpu.asleep for gpu in machine.gpus):
        return True
    try:
        return any(map(is_gpu, await list_devices_once(build)))
    except LauncherError:  # the start that follows will fail with the same error and report it
        return False


def plan_settings_of(options: ServeOptions, backend: Backend) -> PlanSettings:
    """Return the settings for a memory estimate of `options`; open settings get llama-server's defaults."""
    values: dict[str, Any] = {
        row.attribute: row.usual if row.value_in(options) is None else row.value_in(options) for row in ROWS.values()
    }
    return PlanSettings(
        **values,
        backend=backend,
        mmproj_bytes=file_bytes(options.mmproj),
        draft_sizes=tuple((each.kind, file_bytes(each.path)) for each in options.all_drafts),
        spec_type=options.spec_type,
    )


def file_bytes(path: Path | None) -> int:
    """Return a file's size in bytes; 0 if there is none."""
    try:
        return path.stat().st_size if path else 0
    except OSError:
        return 0


def read_draft_file(path: Path | None) -> DraftModel | None:
    """Read the header of a separate draft model; None if there is none or its architecture is unknown."""
    if path is None:
        return None
    try:
        header = isolate_head(read_model(path))
        geometry = read_geometry(header)
        return DraftModel(geometry, read_weights(header, geometry))
    except (LauncherError, OSError):
        return None


def _choose_host_limits(
    options: ServeOptions, header: GgufModel, backend: Backend, situation: Situation
) -> Mapping[str, Value]:
    """Choose host memory limits (such as the prompt cache) for settings left open, by setting name.

    Returns an empty mapping if the memory of the model or its KV cache type cannot be estimated.
    """
    left_open = {row.attribute: None for row in ROWS.values() if row.resolved and row.value_in(options) is None}
    try:
        geometry = read_geometry(header)
        settings = replace(plan_settings_of(options, backend), **left_open)  # type: ignore[arg-type]
        draft_model = read_draft_file(options.used_draft_file)
        estimate = estimate_memory(geometry, read_weights(header, geometry), settings, draft_model)
        host_mib = situation.host_beside_mib(estimate.required_mib)
        return {} if host_mib is None else choose_host_limits(estimate, host_mib)
    except (GeometryUnknown, BadOption):
        return {}


async def prepare_launch(
    options: ServeOptions,
    endpoint: Endpoint,
    *,
    replaced: Callable[[Machine], ServerMemory] | None = None,
    slot_folder: Path | None = None,
) -> Launch:
    """Check everything that can be checked before a process is started, and return the launch.

    `replaced` reads the memory of the running engine that this one will replace. `slot_folder` is an existing folder in
    which the engine may save its slots. Raises a LauncherError with the reason if a check fails; no process or file is
    left behind.
    """
    check_options(options)
    header = await asyncio.to_thread(check_model, options)
    folder = options.model.absolute().parent
    await asyncio.to_thread(check_files, options.extra, folder)
    # An engine takes a split model by its first part. Every start reads the header here, so no start misses its
    # settings.
    options = replace(
        options,
        model=Path(header.parts[0].path),
        embeddings=header.is_embedding or any(each.value_in(options.extra) for each in (_EMBEDDING, _RERANKING)),
        reranking=header.is_reranker or _RERANKING.value_in(options.extra) is not None,
    )
    build = await choose_build(options)
    context = options.context or fallback_context(header.trained_context)
    machine = await asyncio.to_thread(read_machine)
    gpu = not options.no_gpu and await uses_gpu(build, machine)
    own = () if replaced is None else (await asyncio.to_thread(replaced, machine),)
    situation = make_situation(machine, backend=None if gpu else "cpu", servers=own)
    asleep = any(each.asleep for each in machine.gpus)
    if gpu and situation.backend == "cpu" and not asleep:  # the drivers show no GPU, but the engine lists one
        machine = await asyncio.to_thread(read_machine, await list_devices_once(build))
        situation = make_situation(machine, servers=own)
    # A sleeping GPU's backend is unknown. Any GPU backend will do: host memory is the same for all.
    backend: Backend = "vulkan" if gpu and situation.backend == "cpu" else situation.backend
    resolved = replace(options, context=context)
    limits = dict(await asyncio.to_thread(_choose_host_limits, resolved, header, backend, situation))
    if options.threads is None and situation.threads is not None:
        limits["threads"] = situation.threads
    arguments = engine_arguments(
        replace(resolved, **to_fields(limits)), build, endpoint, gpu=gpu, slot_folder=slot_folder
    )
    environment = engine_environment(api_key=endpoint.api_key, reports_loading=True) | dict(build.environment)
    command = EngineCommand((*build.command, *arguments), environment, folder)
    slot_context = plan_settings_of(resolved, backend).slot_context
    fault_note = _known_fault_note(build, options, header) if options.drafter.drafts else ""
    note = join_messages(training_warning(header.trained_context, slot_context), fault_note)
    return Launch(command, build, header, context, options, note, limits)


def _known_fault_note(build: EngineBuild, options: ServeOptions, header: GgufModel) -> str:
    several_slots = options.slots > 1 and bool(header.read_count("ssm.inner_size"))
    fault = find_known_fault(build_number(build.version), several_slots=several_slots)
    if fault is None:
        return ""
    return join_messages(message("This build has a known bug: {reason}.", reason=fault.reason), fault.advice)


def api_model_name(options: ServeOptions) -> str:
    """Return the model's name in the API, cleaned for use as a command line value.

    It is a name after `--alias` among the extra arguments, else the alias, else the file's name.
    """
    name = (
        min(other_names(options), default="") or options.alias or options.model.stem.encode("utf-8", "replace").decode()
    )
    return name.replace(",", " ").lstrip("-").strip() or "model"


def other_names(options: ServeOptions) -> set[str]:
    """Return the names after `--alias` among the extra arguments. llama-server calls the model by the first in order
    of the alphabet, and accepts all.
    """
    return set(filter(None, (_ALIAS.value_in(options.extra) or "").split(",")))


def engine_arguments(
    options: ServeOptions, build: EngineBuild, endpoint: Endpoint, *, gpu: bool, slot_folder: Path | None = None
) -> list[str]:
    """Return all arguments of a server: settings, then address, alias and logging, then the user's extra arguments.

    Raises BadOption for a KV cache type that the build does not support, EngineUnsuitable for a missing flag.
    """
    for kv in filter(None, (options.kv, options.draft_kv)):
        check_kv(kv, sorted(build.kv_types) or tuple(KV_TYPES), engine=f"{build.name} ({build.version})")
    if options.n_cpu_moe:
        _check_can_offload(build)
    settings = server_arguments(options.with_absolute_paths(), build, gpu=gpu)
    without_extra = settings[: len(settings) - len(options.extra)]
    build.require_flags("--host", "--port", "--metrics")
    run_flags = [
        *("--host", endpoint.host, "--port", str(endpoint.port)),
        *_if_supported(build, "--alias", api_model_name(options)),
        *_if_supported(build, "--log-colors", "off"),
        # Below verbosity 4, buffers, layers on the GPU and draft statistics are not printed.
        *_if_supported(build, "--verbosity", "4"),
    ]
    if slot_folder is not None:
        run_flags += _if_supported(build, "--slot-save-path", str(slot_folder))
        # Otherwise each request moves the other slots' states into the prompt cache, which a handover cannot save.
        if options.slots > 1 and _KEEPS_SLOTS in build.flags:
            run_flags.append(_KEEPS_SLOTS)
    return [*without_extra, *run_flags, *options.extra]


def _if_supported(build: EngineBuild, flag: str, value: str) -> tuple[str, ...]:
    return (flag, value) if flag in build.flags else ()


def _check_can_offload(build: EngineBuild) -> None:
    """Raise EngineUnsuitable for the built-in engine, because --n-cpu-moe has no effect on the CPU."""
    if build.name == BUILT_IN:
        raise EngineUnsuitable(
            message("The built-in engine runs on the CPU only, so all experts are already there."),
            message(
                "Omit {n_cpu_moe}. To use a GPU, choose a llama-server built for it[ with {option}][: {page} "
                "installs one].",
                n_cpu_moe=name_setting("n_cpu_moe"),
                option=FaceName("--engine"),
                page=FaceName(None, mark("Start")),
            ),
            option="--n-cpu-moe",
        )
