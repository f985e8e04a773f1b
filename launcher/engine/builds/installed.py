"""The engine store: installed builds side by side, engines added by the user, and the engine in use.

    engines/engines.json                the engine in use, the previous one, and the paths of engines added by the user
    engines/b11434-cuda-13.4-x64/       one complete official build, with its manifest and test result in installed.json
    engines/.new-..., engines/.old-...  an installation or removal that is in progress or was interrupted

The installed builds are found by their installed.json, so that no engine is lost with a damaged engines.json.
"""

import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher.base.errors import BadOption, EngineBusy, EngineMissing, WrittenByNewer
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.locks import hold_lock
from launcher.base.messages import command_name, mark, message
from launcher.base.paths import expand_user
from launcher.base.validation import BaseModel, Field
from launcher.engine.builds.build import PROGRAMS, program_in, store_dir
from launcher.engine.builds.install_errors import EngineInUse
from launcher.engine.server import registry

# Folders of the store. A new engine is prepared in a temporary folder, which is renamed when complete; the folder of a
# removed engine is renamed and then deleted. So an engine's folder is either complete or absent.

_RENAME_RETRY_S = 2.0
"""Seconds to retry while a virus scanner holds new files open (Windows)."""


def installed_name_of(program: Path) -> str | None:
    """Return the name of the installed engine that a program belongs to; None if it is outside the store."""
    return program.parent.name if program.parent.parent == store_dir() else None


@contextmanager
def installation_folder() -> Iterator[Path]:
    """Yield a new temporary folder in the store to prepare an engine in; only one process at a time may do so.

    Leftovers of interrupted installations and removals are deleted first. Raises EngineBusy.
    """
    make_private_folder(store_dir())  # another user with write access could replace the programs that we run
    busy = EngineBusy(message("Another program is installing an engine."), message("Wait until it is done."))
    with hold_lock(store_dir() / "install.lock", busy=busy):
        for leftover in (*store_dir().glob(".new-*"), *store_dir().glob(".old-*")):
            shutil.rmtree(leftover, ignore_errors=True)
        folder = store_dir() / f".new-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def discard_folder(folder: Path) -> None:
    """Remove a folder of the store atomically. Raises EngineBusy if a program has it open (Windows)."""
    trash = store_dir() / f".old-{secrets.token_hex(4)}"
    try:
        rename_folder(folder, trash)
    except PermissionError:
        raise EngineBusy(
            message("{name} is being used, so it was kept.", name=folder.name),
            message("Close the programs that use it."),
        ) from None
    shutil.rmtree(trash, ignore_errors=True)  # the next installation deletes anything left


def rename_folder(folder: Path, target: Path) -> None:
    """Rename a folder within the store."""
    deadline_s = time.monotonic() + _RENAME_RETRY_S
    while sys.platform == "win32":  # a virus scanner opens new files, and an open file blocks renaming its folder
        try:
            folder.rename(target)
            return
        except PermissionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
    folder.rename(target)


AUTOMATIC, BUILT_IN_NAME = "auto", "built-in"
"""Values of the engine in use that are not engines of the store. AUTOMATIC: a llama-server on PATH that sees a GPU,
otherwise the built-in engine. BUILT_IN_NAME: always the built-in engine."""
MANIFEST = "installed.json"
PROGRAM = PROGRAMS[0]
"""The program of an installed build."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,60}", re.ASCII)
_PROGRAM_FOLDERS = ("", "bin", "build/bin", "build/bin/Release")
"""Subfolders in which a server may be: unpacked archive, installation prefix, CMake build folders."""
_LOCK_S = 10.0
_VERSION = 1


class Manifest(BaseModel):
    """The content of installed.json: an installed build and the result of its self-test.

    `backend` has its version, such as cuda-13.4; `drafted` and `accepted` count tokens on the demo model.
    """

    tag: str
    backend: str
    arch: str
    archives: dict[str, str]
    """The archives it was unpacked from, with their SHA-256."""
    version: str
    installed_s: float
    devices: list[str] = []
    drafted: int = 0
    accepted: int = 0
    tokens_per_second: float | None = None


class _OwnEngine(BaseModel):
    """An engine added by the user."""

    name: str
    program: Path


class _Version(BaseModel):
    """The part of engines.json that all format versions share."""

    version: int = _VERSION


class _EngineList(_Version):
    """The content of engines.json."""

    current: str = AUTOMATIC
    previous: str | None = None
    pinned: bool = False
    uncompared: bool = False
    own: list[_OwnEngine] = Field(default=[])


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """An engine of the store; `manifest` is None for one added by the user."""

    name: str
    program: Path
    manifest: Manifest | None

    @property
    def folder(self) -> Path:
        """The folder that contains the program."""
        return self.program.parent

    @property
    def number(self) -> int | None:
        """The llama.cpp build number; None for an engine added by the user."""
        return int(self.manifest.tag[1:]) if self.manifest else None


@dataclass(frozen=True, slots=True)
class EngineStore:
    """A snapshot of the engine store.

    `current` is the engine in use (a name, "auto" or "built-in"), `previous` the one before it, `pinned` whether
    installations must not change `current`, `notice` a message for the user about a damaged engines.json, and
    `uncompared` whether an installation has put `current` in place of `previous`, whose speed was not compared yet.
    """

    engines: tuple[InstalledEngine, ...]
    current: str
    previous: str | None
    pinned: bool
    notice: str | None = None
    uncompared: bool = False

    def find_update(self) -> tuple[InstalledEngine, InstalledEngine] | None:
        """Return the engine in use and the one before it, if both are in the store; None otherwise."""
        by_name = {engine.name: engine for engine in self.engines}
        new, old = by_name.get(self.current), by_name.get(self.previous or "")
        return None if new is None or old is None else (new, old)

    def find_engine(self, name: str) -> InstalledEngine:
        """Return the engine with this name or path, or with this tag if only one has it. Raises EngineMissing."""
        exact = [engine for engine in self.engines if engine.name == name]
        found = exact or [engine for engine in self.engines if engine.manifest and engine.manifest.tag == name]
        path = expand_user(name).absolute()
        if not found and (path.is_file() or (path.is_dir() and len(Path(name).parts) > 1)):
            program = find_program(path).resolve()
            found = [engine for engine in self.engines if engine.program.resolve() == program][:1]
            if not found:
                raise EngineMissing(
                    message("{path} is not an engine of the list.", path=path),
                    message("`mtp-launcher engine add PATH` adds it."),
                    path=str(path),
                )
        if len(found) == 1:
            return found[0]
        names = ", ".join(engine.name for engine in found or self.engines)
        if found:
            raise EngineMissing(
                message("{name} is installed {found} times: {names}.", name=name, found=len(found), names=names),
                message("Use one of these names."),
            )
        hint = (
            message("There are: {names}.", names=names)
            if names
            else message("{command} installs one.", command=command_name("engine install", mark("Start")))
        )
        raise EngineMissing(message("No engine is called {name}.", name=name), hint, name=name)


def read_store() -> EngineStore:
    """Read the engine store. A damaged engines.json is set aside; nothing else is written. Raises WrittenByNewer."""
    engine_list, notice = _load_engine_list()
    return _make_snapshot(engine_list, notice)


def engine_in_use() -> InstalledEngine | None:
    """Return the store's engine in use; None if the choice is automatic or the built-in engine.

    Raises EngineMissing if that engine no longer exists.
    """
    store = read_store()
    if store.current in (AUTOMATIC, BUILT_IN_NAME):
        return None
    try:
        return store.find_engine(store.current)
    except EngineMissing:
        raise EngineMissing(
            message("The engine in use, {current}, no longer exists.", current=store.current),
            message(
                "Run `mtp-launcher engine rollback` for the previous engine, or `engine use auto` to choose "
                "automatically."
            ),
        ) from None


def is_built_in_chosen() -> bool:
    """Return whether the user has chosen the built-in engine explicitly."""
    return read_store().current == BUILT_IN_NAME


def find_engine_by_name(engine: Path) -> InstalledEngine | None:
    """Return the store's engine whose name was given in place of a path; None for a path or an unknown name."""
    if len(engine.parts) != 1 or engine.exists():
        return None
    try:
        return read_store().find_engine(str(engine))
    except EngineMissing:
        return None


def use_engine(name: str) -> EngineStore:
    """Put an engine in use: a name in the store, "auto" or "built-in". Removes the pin. Raises EngineMissing."""
    with _locked_engine_list() as engine_list:
        _switch_to(engine_list, _resolve_name(engine_list, name))
        engine_list.pinned = False
        return _make_snapshot(engine_list)


def switch_after_install(name: str) -> bool:
    """Put a newly installed engine in use unless another one is pinned; return whether it is in use now."""
    with _locked_engine_list() as engine_list:
        if not engine_list.pinned and engine_list.current != name:
            _switch_to(engine_list, name)
            engine_list.uncompared = _make_snapshot(engine_list).find_update() is not None
        return engine_list.current == name


def settle_update(name: str, *, keeps_old: bool) -> None:
    """Record that engine `name` was compared with the one before it; with `keeps_old` the older one is put in use
    again.

    Does nothing if another engine is in use by now.
    """
    with _locked_engine_list() as engine_list:
        if engine_list.current == name:
            engine_list.uncompared = False
            if keeps_old and engine_list.previous is not None and not engine_list.pinned:
                _switch_to(engine_list, engine_list.previous)


def pin_engine(name: str | None = None) -> EngineStore:
    """Pin an engine, by default the one in use, so that later installations do not replace it. Raises EngineMissing."""
    with _locked_engine_list() as engine_list:
        if name is not None:
            _switch_to(engine_list, _resolve_name(engine_list, name))
        elif engine_list.current == AUTOMATIC:
            raise EngineMissing(
                message("No engine is selected, so none can be pinned."), message("Specify one: `engine pin NAME`.")
            )
        engine_list.pinned = True
        return _make_snapshot(engine_list)


def unpin_engine() -> EngineStore:
    """Remove the pin."""
    with _locked_engine_list() as engine_list:
        engine_list.pinned = False
        return _make_snapshot(engine_list)


def roll_back() -> EngineStore:
    """Put the previous engine in use again and remove the pin. A second rollback undoes the first.

    Raises EngineMissing.
    """
    with _locked_engine_list() as engine_list:
        if engine_list.previous is None:
            raise EngineMissing(
                message("There is no previous engine."), message("`mtp-launcher engine list` lists all engines.")
            )
        try:
            _switch_to(engine_list, _resolve_name(engine_list, engine_list.previous))
        except EngineMissing as error:
            raise EngineMissing(
                message("The previous engine, {previous}, no longer exists.", previous=engine_list.previous), error.hint
            ) from None
        engine_list.pinned = False
        return _make_snapshot(engine_list)


def add_engine(path: Path, name: str | None = None) -> InstalledEngine:
    """Add a user's engine to the store by the path of its program or folder. Its files are not moved.

    Raises EngineMissing if there is no engine at `path`, BadOption for a name that is taken or invalid.
    """
    program = find_program(expand_user(path).absolute())
    chosen = name or _default_name(program)
    if not _NAME.fullmatch(chosen) or chosen in (AUTOMATIC, BUILT_IN_NAME):
        raise BadOption(
            message("{chosen!r} cannot be an engine's name.", chosen=chosen),
            message("Use letters, digits, dots and dashes: --name N."),
        )
    with _locked_engine_list() as engine_list:
        for engine in _make_snapshot(engine_list).engines:
            if engine.name == chosen and engine.program != program:
                raise BadOption(
                    message(
                        "The name {chosen} is already used by the engine {program}.",
                        chosen=chosen,
                        program=engine.program,
                    ),
                    message("Choose another name with --name."),
                )
        engine_list.own = [own for own in engine_list.own if own.name != chosen] + [
            _OwnEngine(name=chosen, program=program)
        ]
    return InstalledEngine(chosen, program, None)


def remove_engine(name: str) -> tuple[InstalledEngine, int]:
    """Remove an engine from the store; return it and the freed bytes. Files of a user's own engine are kept.

    Raises EngineMissing, EngineInUse if it is in use or built in, and EngineBusy if it is running.
    """
    if name == BUILT_IN_NAME:
        raise EngineInUse(
            message("The built-in engine is part of this program and cannot be removed."),
            message("`mtp-launcher engine use NAME` switches to another engine."),
        )
    with _locked_engine_list() as engine_list:
        engine = _make_snapshot(engine_list).find_engine(name)
        if engine.name == engine_list.current:
            raise EngineInUse(
                message("{name} is in use and pinned, so it was kept.", name=engine.name)
                if engine_list.pinned
                else message("{name} is in use, so it was kept.", name=engine.name),
                message("Switch to another engine first: `mtp-launcher engine use NAME` (auto chooses automatically)."),
            )
        freed = 0
        if engine.manifest is None:
            engine_list.own = [own for own in engine_list.own if own.name != engine.name]
        else:
            _check_not_running(engine)
            freed = sum(file.lstat().st_size for file in engine.folder.rglob("*") if not file.is_dir())
            discard_folder(engine.folder)
        if engine_list.previous == engine.name:
            engine_list.previous = None
    return engine, freed


def put_in_place(prepared: Path, name: str, manifest: Manifest) -> InstalledEngine:
    """Move a prepared folder into the store as engine `name`, replacing an existing one.

    Raises EngineBusy if the existing one is running; it then stays.
    """
    write_atomically(prepared / MANIFEST, manifest.model_dump_json(indent=1).encode())
    target = store_dir() / name
    engine = InstalledEngine(name, target / PROGRAM, manifest)
    if target.exists():
        _check_not_running(engine)
        discard_folder(target)
    rename_folder(prepared, target)
    return engine


def _resolve_name(engine_list: _EngineList, name: str) -> str:
    return name if name in (AUTOMATIC, BUILT_IN_NAME) else _make_snapshot(engine_list).find_engine(name).name


def _switch_to(engine_list: _EngineList, name: str) -> None:
    if engine_list.current != name:
        engine_list.previous, engine_list.current = engine_list.current, name
        engine_list.uncompared = False


def _make_snapshot(engine_list: _EngineList, notice: str | None = None) -> EngineStore:
    own = [InstalledEngine(each.name, each.program, None) for each in engine_list.own]
    return EngineStore(
        (*_list_installed_builds(), *own),
        engine_list.current,
        engine_list.previous,
        engine_list.pinned,
        notice,
        engine_list.uncompared,
    )


def _list_installed_builds() -> list[InstalledEngine]:
    """Return the installed builds, newest first."""
    engines = []
    for file in store_dir().glob(f"[!.]*/{MANIFEST}"):
        with suppress(OSError):
            if (manifest := _MANIFEST_FILE.load(file)) is None:
                continue
            engines.append(InstalledEngine(file.parent.name, file.parent / PROGRAM, manifest))
    return sorted(engines, key=lambda engine: (-(engine.number or 0), engine.name))


def find_program(path: Path) -> Path:
    """Return the llama-server at `path`, which may be the program or a folder with it. Raises EngineMissing."""
    if path.is_dir():
        for subfolder in _PROGRAM_FOLDERS:
            if found := program_in(path / subfolder):
                return found
        raise EngineMissing(
            message("{path} contains no {program}.", program=PROGRAM, path=path),
            message("Specify the path of the program itself."),
            path=str(path),
        )
    if not path.is_file():
        raise EngineMissing(message("Engine {path} not found.", path=path), message("Check the path."), path=str(path))
    return path


def _default_name(program: Path) -> str:
    """Return a default name for a user's engine: its folder, or for a CMake build the folder of the checkout."""
    folder = next((each for each in program.parents if each.name not in ("bin", "build", "Release", "")), None)
    return re.sub(r"[^\w.+-]+", "-", folder.name, flags=re.ASCII).strip("-.") if folder else ""


def _check_not_running(engine: InstalledEngine) -> None:
    if user := _find_process_using(engine):
        raise EngineBusy(
            message("{name} is running ({user}), so it was kept.", name=engine.name, user=user),
            message("Stop it[: {command}].", command=command_name("stop")),
        )


def _find_process_using(engine: InstalledEngine) -> str | None:
    """Return the server or process that runs an engine, as text for an error message; None if there is none."""
    for entry in registry.list_entries():
        if engine.name in [each.engine for each in entry.models]:
            return f"the server at {entry.url}"
    for process in psutil.process_iter(["pid", "exe"]):
        program = process.info["exe"]
        if program and Path(program).is_relative_to(engine.folder):
            return f"process {process.info['pid']}"
    return None


@contextmanager
def _locked_engine_list() -> Iterator[_EngineList]:
    """Yield the engine list under a lock, and write it back if it changed."""
    store_dir().mkdir(parents=True, exist_ok=True)
    with hold_lock(store_dir() / "lock", _LOCK_S):
        engine_list, _ = _load_engine_list()
        before = engine_list.model_dump_json()
        yield engine_list
        if engine_list.model_dump_json() != before:
            write_atomically(_engine_list_file(), engine_list.model_dump_json(indent=1).encode())


def _load_engine_list() -> tuple[_EngineList, str | None]:
    engine_list, damage = _ENGINE_LIST_FILE.load_with_damage(_engine_list_file())
    if damage is None:
        return engine_list, None
    return engine_list, message("The engine list was damaged, so the selected engine is unknown. None is selected now.")


def _parse_engine_list(data: bytes) -> _EngineList:
    if _Version.model_validate_json(data).version > _VERSION:
        raise WrittenByNewer(
            message("The engine list was written by a newer version of this program."),
            message("Use that version, or move {file} away. No engine is lost.", file=_engine_list_file()),
        )
    return _EngineList.model_validate_json(data)


_ENGINE_LIST_FILE = KeptFile("The list of which engine is in use", _parse_engine_list, _EngineList)
_MANIFEST_FILE: KeptFile[Manifest | None] = KeptFile(
    "The description of an installed engine",
    Manifest.model_validate_json,
    lambda: None,
    consequence="the engine is not listed, and can be installed again",
)


def _engine_list_file() -> Path:
    return store_dir() / "engines.json"
