"""Probes an engine build for its version, flags and devices, and matches it to a fork's profile."""

import asyncio
import hashlib
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launcher.base.codec import decode_json, encode_json
from launcher.base.errors import CpuUnsupported, EngineMissing, EngineUnsuitable, LauncherError, LibraryMissing
from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.messages import message
from launcher.base.paths import cache_dir, config_dir, expand_user, shipped_file
from launcher.engine.builds.build import BUILT_IN, CHOOSE_ENGINE, Device, EngineBuild
from launcher.engine.builds.install_errors import BadProfile
from launcher.engine.environment import engine_environment
from launcher.machine.host import Host, read_host
from launcher.machine.libraries import install_command, missing_libraries

_UNPACK = message(
    "`mtp-launcher engine install` downloads and unpacks builds of llama.cpp. Download and unpack another one yourself,"
    " then run `mtp-launcher engine add` with the path of its llama-server."
)

# Profiles of llama.cpp forks: the KV cache types that identify a fork, and the environment variables it needs.

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """A fork of llama.cpp. A build belongs to it if its --help offers all of `kv_types`.

    `environment` holds variables to set for its engines, `note` and `source` are for the reader.
    """

    name: str
    kv_types: tuple[str, ...]
    environment: Mapping[str, str]
    note: str = ""
    source: str = ""


def find_profile(kv_types: Collection[str]) -> EngineProfile | None:
    """Return the profile of a build that offers `kv_types`; None for llama.cpp itself and for unknown forks.

    Profiles are read from the user's config folder (engines/*.toml), then from presets/engines/. Raises BadProfile if
    one cannot be read.
    """
    places = [
        *sorted((config_dir() / "engines").glob("*.toml")),
        *sorted(shipped_file("presets", "engines").glob("*.toml")),
    ]
    profiles = map(_read_profile, places)
    return next((profile for profile in profiles if set(profile.kv_types) <= set(kv_types)), None)


def _read_profile(path: Path) -> EngineProfile:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except RecursionError as error:
        raise _bad_profile(path, "it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise BadProfile(
            message("{path} cannot be read: {error}.", path=path, error=error),
            message("Repair the file or move it away."),
            path=str(path),
        ) from error
    kv_types, environment = data.get("kv_types"), data.get("environment", {})
    if not kv_types or not isinstance(kv_types, list) or not all(isinstance(kind, str) for kind in kv_types):
        raise _bad_profile(path, "kv_types must be a list of the fork's own KV cache types")
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise _bad_profile(path, "environment must be a table of texts")
    for variable in environment:  # exports write the names into shell scripts and systemd units without quoting
        if not _VARIABLE.fullmatch(variable):
            raise _bad_profile(path, f"{variable!r} is not the name of a variable")
    name = str(data.get("name", path.stem))
    return EngineProfile(name, tuple(kv_types), environment, str(data.get("note", "")), str(data.get("source", "")))


def _bad_profile(path: Path, why: str) -> BadProfile:
    return BadProfile(
        message("{path} is not an engine profile: {why}.", path=path, why=why),
        message("Repair the file or move it away."),
        path=str(path),
    )


_BUILT_IN_SCRIPT = Path(__file__).parents[1] / "builtin.py"
_PROBE_LIMIT_S = 20.0
_PROBE_PATIENCE_S = (0.3, 0.3)
_MOST_CHARACTERS = 2**20
_KV_TYPES = re.compile(r"--cache-type-k\s+\S+[^\n]*\n\s+allowed values: ([^\n]+)|--cache-type-k \{([^}]+)\}")
_SPEC_TYPES = re.compile(r"--spec-type\s+[\[{]?(none[,|][a-z0-9,|-]+)")
_FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
_DEVICE = re.compile(r"^\s+(\S+): (.+) \((\d+) MiB, (\d+) MiB free\)$", re.MULTILINE)
_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
_SERVE = re.compile(r"^\s+serve\s", re.MULTILINE)
"""The line about the server in the help of the one program of llama.cpp (`llama`)."""


@dataclass(frozen=True, slots=True)
class _Probe:
    """The cached result of a probe. `identity` is the engine's path, size and modification time in ns.

    `arguments` are the leading ones that start a server.
    """

    identity: list[str | int]
    arguments: list[str]
    version: str
    flags: list[str]
    kv_types: list[str]
    spec_types: list[str]


_FILE: KeptFile[_Probe | None] = KeptFile(
    "The cached probe of an engine",
    partial(decode_json, _Probe),
    lambda: None,
    recreatable=True,
    consequence="the engine is probed again",
)


@dataclass(frozen=True, slots=True)
class _DeviceList:
    """The kept devices of an engine. `identity` is that of a probe, and what else they depend on."""

    identity: list[str | int]
    devices: tuple[Device, ...]


_DEVICE_FILE: KeptFile[_DeviceList | None] = KeptFile(
    "The kept device list of an engine",
    partial(decode_json, _DeviceList),
    lambda: None,
    recreatable=True,
    consequence="the engine lists its devices again",
)


@cache  # reading a package's metadata takes 3 ms, and each start asks four times
def built_in_version() -> str | None:
    """Return the version of the built-in engine; None if this platform has none."""
    try:
        return version("xllamacpp")
    except PackageNotFoundError:
        return None


def check_built_in_engine(host: Host | None = None) -> None:
    """Check that the built-in engine can run on this computer.

    Raises EngineMissing without the wheel, CpuUnsupported without AVX2, LibraryMissing without a system library.
    """
    if built_in_version() is None:
        raise EngineMissing(
            message("The built-in engine is not installed: there is no xllamacpp wheel for this platform."),
            CHOOSE_ENGINE,
        )
    host = host or read_host()
    if not host.can_run_built_in_engine:
        raise CpuUnsupported(
            message(
                "This CPU lacks {lacks}, which the built-in engine needs.",
                lacks=", ".join(host.missing_features).upper(),
            ),
            CHOOSE_ENGINE,
        )
    missing = missing_libraries("engine")
    if missing:
        names = ", ".join(library.soname for library in missing)
        raise LibraryMissing(
            message("The built-in engine needs {names}, which is not installed.", names=names),
            message("Install it: {install_line}", install_line=install_command(missing)),
        )


async def probe_engine(engine: Path | None, *, timeout_s: float = _PROBE_LIMIT_S) -> EngineBuild:
    """Run an engine with --version and --help and return its capabilities, cached until its file changes.

    `engine` is a path, a program on PATH, or the name of an engine in the store; None is the built-in engine. Each of
    the two runs may take `timeout_s` seconds.

    Raises EngineMissing, EngineUnsuitable, CpuUnsupported or LibraryMissing.
    """
    if engine is None:
        check_built_in_engine()
        name, command = BUILT_IN, [sys.executable, "-P", str(_BUILT_IN_SCRIPT)]
        spec = find_spec("xllamacpp")
        wheel = str(spec.origin) if spec else ""
        identity = [*_file_identity(_BUILT_IN_SCRIPT), built_in_version() or "", wheel]
    else:
        # Imported late: pydantic takes as long as a plan.
        from launcher.engine.builds.installed import installed_name_of

        path = _find_executable(engine)
        name, command, identity = installed_name_of(path) or path.name, [str(path)], _file_identity(path)
    probe = _load_cached_probe(identity)
    if probe is None:
        version_text = await _run_and_read(command, "--version", timeout_s=timeout_s)
        help_text = await _run_and_read(command, "--help", timeout_s=timeout_s)
        arguments = []
        # Of the one program of llama.cpp, the server is a subcommand.
        if "--model" not in help_text and _SERVE.search(help_text):
            arguments = ["serve"]
            with suppress(LauncherError):  # it has a subcommand of that name, but is no llama.cpp
                help_text = await _run_and_read([*command, *arguments], "--help", timeout_s=timeout_s)
        version_line = _VERSION.search(version_text)
        flags = sorted(set(_FLAG.findall(help_text)))
        if version_line is None or "--model" not in flags:
            raise EngineUnsuitable(
                message("{command} is not a llama-server.", command=command[-1]),
                message("Choose the llama-server program of a llama.cpp build."),
                answer=version_text[:400],
            )
        kv_types, spec_types = _KV_TYPES.search(help_text), _SPEC_TYPES.search(help_text)
        offered = re.split(r"[,\s]+", (kv_types[1] or kv_types[2]).strip()) if kv_types else []
        probe = _Probe(
            identity=identity,
            arguments=arguments,
            version=version_line[1].strip(),
            flags=flags,
            kv_types=offered,
            spec_types=re.split(r"[,|]", spec_types[1]) if spec_types else [],
        )
        _save_probe(probe)
    profile = find_profile(probe.kv_types)
    return EngineBuild(
        name,
        (*command, *probe.arguments),
        probe.version,
        flags=frozenset(probe.flags),
        kv_types=frozenset(probe.kv_types),
        environment=profile.environment if profile else {},
        spec_types=frozenset(probe.spec_types),
    )


async def read_help(build: EngineBuild) -> str:
    """Return the output of a build's --help. Raises EngineUnsuitable or EngineFailed if it does not answer."""
    return await _run_and_read(build.command, "--help")


async def list_devices(build: EngineBuild, rpc: Sequence[str] = ()) -> tuple[Device, ...]:
    """Return the GPUs that the build can use. Not cached, because drivers may be installed or removed.

    With `rpc`, the devices of these workers are included; their names begin with RPC. Raises EngineFailed if the engine
    cannot list them.
    """
    workers = ("--rpc", ",".join(rpc)) if rpc else ()
    text = await _run_and_read(build.command, *workers, "--list-devices")
    return tuple(Device(name, about, int(total), int(free)) for name, about, total, free in _DEVICE.findall(text))


_listed: dict[tuple[str, ...], tuple[Device, ...]] = {}


async def list_devices_once(build: EngineBuild, drivers: str | None = None) -> tuple[Device, ...]:
    """Return the devices of a build as they were listed before; their free memory is old.

    To list them takes as long as a start, and some memory of each GPU. `drivers` states all that they depend on: the
    list is kept on the disk until that or the build's file changes. Without it nothing tells when a driver was
    installed, so the list is kept in memory only. Raises what `list_devices` raises.
    """
    if drivers is None:
        key = (*build.command, build.version)
        if key not in _listed:
            _listed[key] = await list_devices(build)
        return _listed[key]
    identity = _file_identity(Path(build.command[0]))
    place = _probe_file(identity).with_suffix(".devices.json")
    with suppress(OSError):
        kept = _DEVICE_FILE.load(place)
        if kept is not None and kept.identity == [*identity, drivers]:
            return kept.devices
    devices = await list_devices(build)
    with suppress(OSError):
        write_atomically(place, encode_json(_DeviceList([*identity, drivers], devices)))
    return devices


def _find_executable(engine: Path) -> Path:
    from launcher.engine.builds.installed import find_engine_by_name

    found = shutil.which(str(engine))
    installed = None if found else find_engine_by_name(engine)
    path = installed.program if installed else expand_user(found or engine).absolute()
    if path.is_dir():
        raise EngineMissing(
            message("{path} is a folder.", path=path), message("Choose the llama-server program inside it.")
        )
    if not path.exists():
        if re.match(r"https?:/", str(engine)):
            raise EngineMissing(message("A web address is no program on this computer."), _UNPACK)
        raise EngineMissing(message("Engine {path} not found.", path=path), CHOOSE_ENGINE)
    if shutil.which(str(path)) is None:
        if not _is_program(path):
            raise EngineMissing(
                message("{path} is not a program.", path=path),
                _UNPACK if path.name.lower().endswith((".zip", ".gz", ".7z", ".xz", ".deb", ".rpm")) else CHOOSE_ENGINE,
            )
        raise EngineMissing(
            message("{path} is not executable.", path=path),
            message("Make it executable: chmod +x {program}", program=shlex.quote(str(path))),
        )
    return path


def _is_program(path: Path) -> bool:
    """Return whether a file starts like a program or script; True if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF", b"MZ"))
    except OSError:
        return True


def _file_identity(path: Path) -> list[str | int]:
    stat = path.stat()
    return [str(path), stat.st_size, stat.st_mtime_ns]


async def _run_and_read(command: Sequence[str], *arguments: str, timeout_s: float = _PROBE_LIMIT_S) -> str:
    """Run a command and return its output, stdout and stderr together (llama-server prints its version on stderr).

    The process cannot outlive this program. Raises EngineUnsuitable if it prints more than `_MOST_CHARACTERS` or does
    not end within `timeout_s` seconds; if it fails, raises the cause that its output names.
    """
    # Imported late: a cached probe starts nothing.
    from launcher.engine.server.process import EngineCommand, start_process

    # The program itself: an interpreter may stand before it, its subcommand after it.
    begin = max(index for index, word in enumerate(command) if Path(word).is_absolute())
    flag, shown, folder = arguments[-1], " ".join(command[begin:]), Path(command[begin]).parent
    lines: list[str] = []
    characters_left = _MOST_CHARACTERS
    too_much = asyncio.Event()

    def handle_line(_stream: str, line: str) -> None:
        nonlocal characters_left
        characters_left -= len(line) + 1
        if characters_left > 0:
            lines.append(line)
        else:
            too_much.set()

    process = await start_process(EngineCommand((*command, *arguments), engine_environment(), folder), handle_line)
    overflow = asyncio.ensure_future(too_much.wait())
    waiting: set[asyncio.Future[Any]] = {process.exited, overflow}
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        overflow.cancel()
        ended_itself = process.exited.done()
        process_exit = await process.stop(_PROBE_PATIENCE_S)
    if too_much.is_set():
        raise EngineUnsuitable(
            message("{command} {flag} prints endlessly.", command=shown, flag=flag),
            message("Choose the llama-server program itself."),
        )
    if not ended_itself:
        raise EngineUnsuitable(
            message(
                "{command} {flag} gave no answer within {probe_s:.0f} s.",
                command=shown,
                flag=flag,
                probe_s=timeout_s,
            ),
            message("Choose the llama-server program itself."),
        )
    if process_exit.code:
        from launcher.engine.diagnosis.explain import explain_exit

        hint = message("Run `{command} {flag}` yourself to see its output.", command=shown, flag=flag)
        raise explain_exit(process_exit, lines, while_doing=message("answering {flag}", flag=flag), hint=hint)
    return "\n".join(lines)


def _probe_file(identity: list[str | int]) -> Path:
    return cache_dir() / "probes" / f"{hashlib.sha256(repr(identity[0]).encode()).hexdigest()[:16]}.json"


def _load_cached_probe(identity: list[str | int]) -> _Probe | None:
    try:
        probe = _FILE.load(_probe_file(identity))
    except OSError:
        return None
    return probe if probe is not None and probe.identity == identity else None


def _save_probe(probe: _Probe) -> None:
    try:
        write_atomically(_probe_file(probe.identity), encode_json(probe))
    except OSError:
        return  # the engine is probed again next time
