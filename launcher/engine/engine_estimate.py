"""Memory estimate by the engine itself: a dry run on a sparse copy of the model, which ends before weights are read."""

import asyncio
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.base.errors import EngineUnsuitable, TwinImpossible
from launcher.base.files import make_folder
from launcher.base.identity import ProcessId
from launcher.base.messages import message
from launcher.base.paths import HOME_VARIABLE, cache_dir
from launcher.engine.arguments import planned_options, server_arguments
from launcher.engine.builds.build import EngineBuild
from launcher.engine.diagnosis.explain import explain_exit
from launcher.engine.environment import engine_environment
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.process import EngineCommand, Stream, start_process
from launcher.models.compute_buffers import Backend
from launcher.models.memory import MemoryEstimate, PlanSettings

# Parser for the memory tables that llama-server prints while it fits a model, as JSON lines or as text (older builds).

_TABLE_TITLE = "memory breakdown [MiB]"
_TABLES_END = "projected to use"


@dataclass(frozen=True, slots=True)
class MemoryTableRow:
    """One row of a memory table, in whole MiB.

    `name` is a device such as CUDA0, or a kind of host memory unless `is_device`. `total` and `free` are the device's
    memory, None for the host.
    """

    name: str
    is_device: bool
    model: int
    context: int
    compute: int
    total: int | None = None
    free: int | None = None


MemoryTable = tuple[MemoryTableRow, ...]


@dataclass(slots=True)
class MemoryTableReader:
    """Collects memory tables from an engine's output lines.

    llama-server prints tables for each set of settings that it tries; `ended` is True after those of the first set.
    """

    tables: list[MemoryTable] = field(default_factory=list)
    ended: bool = False
    _rows: list[MemoryTableRow] | None = None
    _json: bool = False

    def read_line(self, line: str) -> None:
        """Process one line of output."""
        if line.startswith("{"):
            self._read_json(line)
        else:
            self._read_text(line)

    def _read_json(self, line: str) -> None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(record, dict):
            return
        if record.get("type") == "fit_memory_breakdown":
            data = record.get("data")
            rows = data.get("rows") if isinstance(data, dict) else None
            parsed = [_parse_json_row(row) for row in rows] if isinstance(rows, list) else []
            valid = tuple(row for row in parsed if row is not None)
            if parsed and len(valid) == len(parsed):
                self._json = True
                self.tables.append(valid)
        elif isinstance(record.get("msg"), str):
            if self._json:
                self.ended |= _TABLES_END in record["msg"]
            else:
                self._read_text(record["msg"].rstrip("\n"))

    def _read_text(self, line: str) -> None:
        self.ended |= _TABLES_END in line
        if _TABLE_TITLE in line:
            self._finish_table()
            self._rows = []
        elif self._rows is not None:
            row = _parse_text_row(line)
            if row is None:
                self._finish_table()
            else:
                self._rows.append(row)

    def _finish_table(self) -> None:
        if self._rows:
            self.tables.append(tuple(self._rows))
        self._rows = None


def _parse_json_row(row: object) -> MemoryTableRow | None:
    """Parse one row of a JSON record; None if it is malformed or lacks a figure."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return None
    model, context, compute, total, free = (
        value if isinstance(value := row.get(key), int) and not isinstance(value, bool) else None
        for key in ("model", "context", "compute", "total", "free")
    )
    if model is None or context is None or compute is None:
        return None
    if row.get("kind") == "device":
        return MemoryTableRow(row["name"], True, model, context, compute, total, free)
    return MemoryTableRow(row["name"], False, model, context, compute)


def _parse_text_row(line: str) -> MemoryTableRow | None:
    """Parse `| - NAME (ABOUT) | TOTAL = FREE + (SELF = MODEL + CONTEXT + COMPUTE) + REST |`, or a row of host memory.

    Rows of host memory have only SELF = MODEL + CONTEXT + COMPUTE. Returns None for other lines.
    """
    cells = line.split("|")
    if len(cells) < 4 or not cells[1].strip().startswith("- "):
        return None
    name = cells[1].strip().removeprefix("- ").split(" (")[0].strip()
    words = cells[-2].replace("(", " ").replace(")", " ").replace("=", " ").replace("+", " ").split()
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        return None
    if len(numbers) == 7:
        total, free, _, model, context, compute, _ = numbers
        return MemoryTableRow(name, True, model, context, compute, total, free)
    if len(numbers) == 4:
        _, model, context, compute = numbers
        return MemoryTableRow(name, False, model, context, compute)
    return None


# Sparse twin: a file with a model's real header and full size, but holes in place of the weights.

_TEST_HOLE_BYTES = 2**25
"""Size of the hole with which a new file is tested: a file system without sparse files would fill it with zeroes."""
_NODE = platform.node() or "localhost"
_TWIN_FOLDER_NAME = re.compile(re.escape(_NODE) + r"-(\d+)-(\d+\.\d+)-.*")
"""Name of a twin's folder: computer, pid and creation time of the owning process, and a random suffix."""
_FSCTL_SET_SPARSE = 0x900C4


@dataclass(frozen=True, slots=True)
class TwinPart:
    """One file of the model: its name, the bytes before its tensor data, and its full size in bytes."""

    name: str
    raw_header: bytes
    file_bytes: int


@contextmanager
def sparse_twin(parts: Sequence[TwinPart], folder: Path | None = None) -> Iterator[Path]:
    """Create the sparse twin of a model, yield the path of its first file, and delete it at the end.

    It is created in `folder`, by default in the cache folder; twins left by killed processes of this computer are
    deleted there. Raises TwinImpossible if the file system has no sparse files, no space, or a smaller file size limit,
    and OSError if the cache folder cannot be created.
    """
    base = (cache_dir() / "twins") if folder is None else folder
    if folder is None:
        make_folder(cache_dir())
    try:
        base.mkdir(parents=True, exist_ok=True)
        _delete_orphaned_twins(base)
        owner = ProcessId.from_pid(os.getpid()) or ProcessId(os.getpid(), time.time())
        twin_folder = Path(tempfile.mkdtemp(prefix=f"{_NODE}-{owner.pid}-{owner.created_s:.2f}-", dir=base))
    except OSError as error:
        raise _twin_impossible(base, str(error.strerror or error)) from error
    try:
        try:
            for part in parts:
                _write_twin_file(twin_folder / part.name, part)
        except OSError as error:
            raise _twin_impossible(base, str(error.strerror or error)) from error
        yield twin_folder / parts[0].name
    finally:
        shutil.rmtree(twin_folder, ignore_errors=True)


def _write_twin_file(path: Path, part: TwinPart) -> None:
    with path.open("wb") as file:
        if sys.platform == "win32":
            _make_sparse(file.fileno())
        file.write(part.raw_header)
        file.flush()
        file.truncate(min(part.file_bytes, len(part.raw_header) + _TEST_HOLE_BYTES))
        if _disk_bytes(path) > len(part.raw_header) + _TEST_HOLE_BYTES // 2:
            raise _twin_impossible(path.parent.parent, "its file system has no sparse files")
        file.truncate(part.file_bytes)


def _disk_bytes(path: Path) -> int:
    if sys.platform == "win32":
        return 0  # on Windows FSCTL_SET_SPARSE has failed already if the file system has no sparse files
    return path.stat().st_blocks * 512


def _make_sparse(descriptor: int) -> None:
    if sys.platform != "win32":
        return
    import ctypes
    import msvcrt
    from ctypes import wintypes

    returned = wintypes.DWORD()
    handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
    done = ctypes.windll.kernel32.DeviceIoControl(
        handle, _FSCTL_SET_SPARSE, None, 0, None, 0, ctypes.byref(returned), None
    )
    if not done:
        raise OSError(ctypes.get_last_error(), "its file system has no sparse files")


def _delete_orphaned_twins(base: Path) -> None:
    """Delete twins whose process no longer runs."""
    for folder in base.iterdir():
        owner = _TWIN_FOLDER_NAME.fullmatch(folder.name)
        if owner and not ProcessId(int(owner[1]), float(owner[2])).is_running():
            shutil.rmtree(folder, ignore_errors=True)


def _twin_impossible(folder: Path, why: str) -> TwinImpossible:
    return TwinImpossible(
        message(
            "The engine cannot compute the memory: {folder} does not support sparse files ({why}).",
            folder=folder,
            why=why.rstrip("."),
        ),
        message(
            "Set {home_variable} to a folder on a disk with sparse files (ext4, NTFS).", home_variable=HOME_VARIABLE
        ),
        folder=os.fspath(folder),
    )


DRY_RUN_LIMIT_S = 60.0
"""Seconds that an engine may take to print its tables; 0.1 to 0.3 s were measured."""
_ANOTHER_BUILD_HINT = message("Try another llama.cpp build.")
_PATIENCE_S = (0.0, 0.0)
"""The engine is killed at once, because it has nothing to save."""
_KEPT_LINES = 400
"""Last lines that are kept to explain an engine that ends without tables."""
_BACKENDS: tuple[tuple[str, Backend], ...] = (
    ("CUDA", "cuda"),
    ("ROCm", "rocm"),
    ("Vulkan", "vulkan"),
    ("MTL", "metal"),
)
_WEIGHTS_BUFFER = re.compile(r"load_tensors:\s+(\w+) model buffer size")


@dataclass(frozen=True, slots=True)
class EngineEstimate:
    """An engine's memory estimate in whole MiB, on the GPUs, or on the host if it uses none.

    `draft_*` are None without MTP. `host_mib` is the host memory used besides the GPUs, 0 if there are none. `free_mib`
    is the free GPU memory, None if not reported. `seconds` is the duration of the dry run.
    """

    engine: str
    backend: Backend
    devices: tuple[str, ...]
    model_mib: int
    context_mib: int
    compute_mib: int
    draft_context_mib: int | None
    draft_compute_mib: int | None
    host_mib: int
    free_mib: int | None
    seconds: float

    @property
    def total_mib(self) -> int:
        """Total memory on the GPUs, or on the host without a GPU."""
        draft = (self.draft_context_mib or 0) + (self.draft_compute_mib or 0)
        return self.model_mib + self.context_mib + self.compute_mib + draft


async def ask_engine(
    build: EngineBuild,
    parts: Sequence[TwinPart],
    settings: PlanSettings,
    *,
    gpu: bool = True,
    no_gpu: bool = False,
    embeddings: bool = False,
    reranking: bool = False,
    limit_s: float = DRY_RUN_LIMIT_S,
) -> EngineEstimate:
    """Start `build` with `settings` on a sparse twin of a model, read the memory tables it prints, and stop it.

    `gpu` is whether the build computes on a GPU, `no_gpu` whether a GPU build must not use one, `embeddings` whether
    the model turns texts into vectors, `reranking` whether it ranks them.

    Raises TwinImpossible if no sparse file can be created, EngineUnsuitable if the build prints no tables within
    `limit_s` seconds, and the cause in its log if it refuses the model or the settings.
    """
    began_s = time.monotonic()
    with sparse_twin(parts) as model:
        command = dry_run_command(
            build, model, settings, gpu=gpu, no_gpu=no_gpu, embeddings=embeddings, reranking=reranking
        )
        tables = await _read_memory_tables(command, build, settings, limit_s, model.parent)
    estimate = _estimate_from_tables(tables, f"{build.name} {build.version}", time.monotonic() - began_s)
    if estimate.devices and settings.n_cpu_moe:
        build.require_flags("--n-cpu-moe")
    return estimate


def read_engine_memory(build: EngineBuild, log: Iterable[str]) -> EngineEstimate | None:
    """Return the memory by the tables that an engine printed when it was started; None if `log` has none."""
    reader = MemoryTableReader()
    for line in log:
        if not reader.ended:
            reader.read_line(line)
    return _estimate_from_tables(reader.tables, f"{build.name} {build.version}", 0.0) if reader.tables else None


def _estimate_from_tables(tables: Sequence[MemoryTable], engine: str, seconds: float) -> EngineEstimate:
    """Return the estimate in the table of the model and, with MTP, in that of the draft."""
    table = tables[0]
    devices = tuple(row.name for row in table if row.is_device)
    counted = [row for row in table if row.is_device or not devices]
    draft = [row for row in tables[1] if row.is_device or not devices] if len(tables) > 1 else None
    free = [row.free for row in table if row.is_device and row.free is not None]
    return EngineEstimate(
        engine=engine,
        backend=_backend_of_devices(devices),
        devices=devices,
        model_mib=sum(row.model for row in counted),
        context_mib=sum(row.context for row in counted),
        compute_mib=sum(row.compute for row in counted),
        draft_context_mib=sum(row.context for row in draft) if draft is not None else None,
        draft_compute_mib=sum(row.compute for row in draft) if draft is not None else None,
        host_mib=sum(row.model + row.context + row.compute for row in table if not row.is_device) if devices else 0,
        free_mib=sum(free) if free else None,
        seconds=seconds,
    )


def comparable_parts(estimate: MemoryEstimate) -> dict[str, float]:
    """Return the parts of our estimate in MiB by EngineEstimate's field names, without overhead and projector."""
    parts = estimate.parts
    mib = 2**20
    return {
        "model_mib": (parts.weights - estimate.setting.draft_bytes) / mib,
        "context_mib": (parts.kv + parts.recurrent) / mib,
        "compute_mib": (parts.compute + parts.staging) / mib,
        "draft_context_mib": parts.draft_kv / mib,
        "draft_compute_mib": parts.draft_compute / mib,
    }


def difference_percent(estimate: MemoryEstimate, engine: EngineEstimate) -> float | None:
    """Return by how many percent our estimate exceeds the engine's, over common parts; None if those are 0."""
    ours = sum(comparable_parts(estimate).values())
    return 100 * (ours / engine.total_mib - 1) if engine.total_mib else None


async def _read_memory_tables(
    command: EngineCommand, build: EngineBuild, settings: PlanSettings, limit_s: float, twin_folder: Path
) -> list[MemoryTable]:
    """Run `command` until it has printed the table of the model and, with MTP, that of the draft; return them.

    What it says of a file in `twin_folder` is about the user's file of that name.
    """
    table_count = 2 if settings.drafter.drafts else 1
    reader = MemoryTableReader()
    lines: list[str] = []
    tables_complete = asyncio.Event()

    def handle_line(_stream: Stream, line: str) -> None:
        lines.append(line.replace(f"{twin_folder}{os.sep}", ""))
        del lines[:-_KEPT_LINES]
        reader.read_line(line)
        if len(reader.tables) >= table_count or reader.ended:
            tables_complete.set()

    process = await start_process(command, handle_line)
    answered = asyncio.ensure_future(tables_complete.wait())
    answer_or_exit: set[asyncio.Future[Any]] = {answered, process.exited}
    try:
        await asyncio.wait(answer_or_exit, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        answered.cancel()
        ended_itself = process.exited.done()
        process_exit = await process.stop(_PATIENCE_S)
    if len(reader.tables) >= table_count:
        return reader.tables
    if ended_itself and process_exit.code:
        raise explain_exit(process_exit, lines, while_doing=message("judging the memory"), hint=_ANOTHER_BUILD_HINT)
    name = message("The engine {name} ({version})", name=build.name, version=build.version)
    if not ended_itself and not tables_complete.is_set():
        raise EngineUnsuitable(
            message("{name} did not report the model's memory within {limit_s:g} s.", name=name, limit_s=limit_s),
            _ANOTHER_BUILD_HINT,
        )
    raise EngineUnsuitable(
        message(
            "{name} does not report the memory of {tables_part}.",
            name=name,
            tables_part="MTP" if reader.tables else message("a model"),
        ),
        message("Use llama.cpp build b11434 or newer."),
    )


def dry_run_command(
    build: EngineBuild,
    model: Path,
    settings: PlanSettings,
    *,
    gpu: bool,
    no_gpu: bool = False,
    embeddings: bool = False,
    reranking: bool = False,
) -> EngineCommand:
    """Return the command that serves `model` with `settings` on any free port and prints the memory tables."""
    # On the CPU --n-cpu-moe has no effect, so a build without it will do; ask_engine requires it if a GPU is used.
    if "--n-cpu-moe" not in build.flags:
        settings = replace(settings, n_cpu_moe=0)
    options = replace(
        planned_options(settings, ServeOptions(model)), no_gpu=no_gpu, embeddings=embeddings, reranking=reranking
    )
    arguments = [*server_arguments(options, build, gpu=gpu), "--host", "127.0.0.1", "--port", "0"]
    for flag, value in (("--verbosity", "4"), ("--log-jsonl", None), ("--log-colors", "off")):
        if flag in build.flags:
            arguments += [flag] if value is None else [flag, value]
    return EngineCommand((*build.command, *arguments), engine_environment() | dict(build.environment), model.parent)


def backend_of_log(lines: Iterable[str]) -> Backend:
    """Return the backend that holds the weights of the last model in an engine's log (verbosity 4)."""
    devices = [found[1] for line in lines if (found := _WEIGHTS_BUFFER.search(line))]
    gpu_backends = [backend for name in reversed(devices) if (backend := _backend_of_devices([name])) != "cpu"]
    return gpu_backends[0] if gpu_backends else "cpu"


def _backend_of_devices(devices: Sequence[str]) -> Backend:
    first = devices[0] if devices else ""
    return next((backend for prefix, backend in _BACKENDS if first.startswith(prefix)), "cpu")
