"""An engine build: where it is, and what it says it can do. Nothing about a build is assumed."""

import asyncio
import hashlib
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from launcher.base.errors import CpuUnsupported, EngineMissing, EngineUnsuitable, LibraryMissing
from launcher.base.files import write_atomically
from launcher.base.paths import cache_dir, expanded
from launcher.engine.diagnosis import explain
from launcher.engine.environment import engine_environment
from launcher.engine.installed import installed_as
from launcher.engine.process import Command, start
from launcher.engine.profile import profile_for
from launcher.engine.staging import name_of
from launcher.machine.host import Host, read_host
from launcher.machine.libraries import install_line, missing_libraries

BUILT_IN = "built-in"
_BUILT_IN_SCRIPT = Path(__file__).with_name("builtin.py")
_PROBE_S = 20.0
_PROBE_PATIENCE_S = (0.3, 0.3)
_MOST_CHARACTERS = 2**20
_KV_TYPES = re.compile(r"--cache-type-k\s+\S+[^\n]*\n\s+allowed values: ([^\n]+)|--cache-type-k \{([^}]+)\}")
_FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
_DEVICE = re.compile(r"^\s+(\S+): (.+) \((\d+) MiB, (\d+) MiB free\)$", re.MULTILINE)
_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the engine lists it."""

    name: str
    description: str
    total_mib: int
    free_mib: int


@dataclass(frozen=True, slots=True)
class Build:
    """A build that answered its probe: the command that starts it, its version, the flags and KV cache types it knows.

    `environment` holds the variables that the profile of its fork asks for. `offers_mtp` is whether its --help names
    draft-mtp, MTP's kind of speculation.
    """

    name: str
    command: tuple[str, ...]
    version: str
    flags: frozenset[str]
    kv_types: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    offers_mtp: bool = False

    def require(self, *flags: str) -> None:
        """Raise EngineUnsuitable unless the build knows all `flags`."""
        missing = [flag for flag in flags if flag not in self.flags]
        if missing:
            raise EngineUnsuitable(
                f"The engine {self.name} ({self.version}) does not know {', '.join(missing)}.",
                "Name a newer llama-server with --engine."
                if self.name == BUILT_IN
                else "Use a newer llama.cpp build, or leave --engine out to use the built-in one.",
                missing=missing,
            )


class _Probe(BaseModel):
    """The answer of a probe as it is kept between runs."""

    identity: list[str | int]
    version: str
    flags: list[str]
    kv_types: list[str]
    offers_mtp: bool


def built_in_version() -> str | None:
    """Return the version of the built-in engine, or None when this platform has none."""
    try:
        return version("xllamacpp")
    except PackageNotFoundError:
        return None


def check_built_in(host: Host | None = None) -> None:
    """Raise when the built-in engine cannot run here: no wheel, no AVX2, or a missing library."""
    if built_in_version() is None:
        raise EngineMissing(
            "The built-in engine is not installed: there is no xllamacpp wheel for this platform.",
            "Name a llama-server with --engine.",
        )
    host = host or read_host()
    if not host.runs_built_in_engine:
        raise CpuUnsupported(
            f"This processor has no {', '.join(host.lacks).upper()}, which the built-in engine needs.",
            "Name a llama-server that was built for this processor with --engine.",
        )
    missing = missing_libraries("engine")
    if missing:
        names = ", ".join(library.soname for library in missing)
        raise LibraryMissing(
            f"The built-in engine needs {names}, which is not installed.", f"Install it: {install_line(missing)}"
        )


def find_on_path() -> Path | None:
    """Return the llama-server on PATH, if there is one.

    One in the current folder is none, although Windows looks there first: it may have come with a download.
    """
    found = shutil.which("llama-server")
    return Path(found) if found and Path(found).is_absolute() else None


async def probe(engine: Path | None) -> Build:
    """Ask a build what it can do; None is the built-in engine. The answer is kept until the file changes.

    `engine` is a path, a program on PATH, or the name of an engine of the store.

    Raises EngineMissing, EngineUnsuitable, CpuUnsupported or LibraryMissing.
    """
    if engine is None:
        check_built_in()
        name, command = BUILT_IN, [sys.executable, "-P", str(_BUILT_IN_SCRIPT)]
        spec = find_spec("xllamacpp")
        wheel = str(spec.origin) if spec else ""
        identity = [*_identity(_BUILT_IN_SCRIPT), built_in_version() or "", wheel]
    else:
        path = _executable(engine)
        name, command, identity = name_of(path) or path.name, [str(path)], _identity(path)
    known = _load(identity)
    if known is None:
        version_text = await _ask(command, "--version")
        help_text = await _ask(command, "--help")
        found = _VERSION.search(version_text)
        flags = sorted(set(_FLAG.findall(help_text)))
        if found is None or "--model" not in flags:
            raise EngineUnsuitable(
                f"{command[-1]} does not answer like a llama-server.",
                "Name the llama-server program of a llama.cpp build.",
                answer=version_text[:400],
            )
        kv_types = _KV_TYPES.search(help_text)
        offered = re.split(r"[,\s]+", (kv_types[1] or kv_types[2]).strip()) if kv_types else []
        known = _Probe(
            identity=identity,
            version=found[1].strip(),
            flags=flags,
            kv_types=offered,
            offers_mtp="draft-mtp" in help_text,
        )
        _keep(known)
    profile = profile_for(known.kv_types)
    return Build(
        name,
        tuple(command),
        known.version,
        flags=frozenset(known.flags),
        kv_types=frozenset(known.kv_types),
        environment=profile.environment if profile else {},
        offers_mtp=known.offers_mtp,
    )


async def help_of(build: Build) -> str:
    """Return what a build's --help prints. Raises EngineUnsuitable or EngineFailed when it does not answer."""
    return await _ask(build.command, "--help")


async def list_devices(build: Build, rpc: Sequence[str] = ()) -> tuple[Device, ...]:
    """Return the GPUs that the build can use, asked anew: drivers come and go.

    With `rpc` it asks these workers, too, for theirs, whose names begin with RPC. Raises EngineFailed when it cannot.
    """
    workers = ("--rpc", ",".join(rpc)) if rpc else ()
    text = await _ask(build.command, *workers, "--list-devices")
    return tuple(Device(name, about, int(total), int(free)) for name, about, total, free in _DEVICE.findall(text))


def _executable(engine: Path) -> Path:
    found = shutil.which(str(engine))
    named = None if found else installed_as(engine)
    path = named.program if named else expanded(found or engine).absolute()
    if path.is_dir():
        raise EngineMissing(f"{path} is a folder.", "Name the llama-server program inside it.")
    if not path.exists():
        raise EngineMissing(f"There is no engine {path}.", "Check the path, or leave --engine out.")
    if shutil.which(str(path)) is None:
        if not _is_program(path):
            raise EngineMissing(f"{path} is no program.", "Name a llama-server, or leave --engine out.")
        raise EngineMissing(f"{path} may not be executed.", f"Allow it: chmod +x {shlex.quote(str(path))}")
    return path


def _is_program(path: Path) -> bool:
    """Whether a file begins as programs and scripts do that this system can execute; True when that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF", b"MZ"))
    except OSError:
        return True


def _identity(path: Path) -> list[str | int]:
    stat = path.stat()
    return [str(path), stat.st_size, stat.st_mtime_ns]


async def _ask(command: Sequence[str], *arguments: str) -> str:
    """Run a command and return all that it printed (llama-server prints its version on stderr).

    It runs as an engine does, so nothing of it outlives us, and what it prints is read to a limit.
    """
    flag = arguments[-1]
    lines: list[str] = []
    room = _MOST_CHARACTERS
    too_much = asyncio.Event()

    def take(_stream: str, line: str) -> None:
        nonlocal room
        room -= len(line) + 1
        if room > 0:
            lines.append(line)
        else:
            too_much.set()

    process = await start(Command((*command, *arguments), engine_environment(), Path(command[-1]).parent), take)
    overflow = asyncio.ensure_future(too_much.wait())
    waiting: set[asyncio.Future[Any]] = {process.exited, overflow}
    try:
        await asyncio.wait(waiting, timeout=_PROBE_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        overflow.cancel()
        answered = process.exited.done()
        ended = await process.stop(_PROBE_PATIENCE_S)
    if too_much.is_set():
        raise EngineUnsuitable(f"{command[-1]} {flag} prints without end.", "Name the llama-server program itself.")
    if not answered:
        raise EngineUnsuitable(f"{command[-1]} {flag} gave no answer within {_PROBE_S:.0f} s.", "Is it a llama-server?")
    if ended.code:
        hint = f"See what `{command[-1]} {flag}` says by itself."
        raise explain(ended, lines, while_doing=f"answering {flag}", hint=hint)
    return "\n".join(lines)


def _probe_file(identity: list[str | int]) -> Path:
    return cache_dir() / "probes" / f"{hashlib.sha256(repr(identity[0]).encode()).hexdigest()[:16]}.json"


def _load(identity: list[str | int]) -> _Probe | None:
    try:
        known = _Probe.model_validate_json(_probe_file(identity).read_bytes())
    except (OSError, ValidationError):
        return None
    return known if known.identity == identity else None


def _keep(known: _Probe) -> None:
    try:
        write_atomically(_probe_file(known.identity), known.model_dump_json().encode())
    except OSError:
        return  # the probe is asked again next time
