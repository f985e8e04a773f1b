"""The store of engines: versions side by side, which one is in use and which was before, and the user's own.

    engines/engines.json                what is in use, and the user's own engines by their paths
    engines/b11434-cuda-13.4-x64/       one official build, whole, with installed.json: what it is and how it was tested
    engines/.new-..., engines/.old-...  an installation or a removal that is under way, or was cut short

What is installed is what lies there with its installed.json, so a lost or damaged engines.json loses no engine.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock
from pydantic import BaseModel, Field, ValidationError

from launcher.base.errors import BadOption, EngineBusy, EngineMissing, WrittenByNewer
from launcher.base.files import set_aside, write_atomically
from launcher.base.paths import expanded
from launcher.engine import registry
from launcher.engine.install_errors import EngineKept
from launcher.engine.staging import discard, move, store_dir

AUTOMATIC, BUILT_IN_NAME = "auto", "built-in"
"""What may be in use beside the store's engines: the choice of old (one on PATH that sees a GPU, else the built-in), or
the built-in engine in any case."""
MANIFEST = "installed.json"
PROGRAM = "llama-server.exe" if sys.platform == "win32" else "llama-server"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,60}", re.ASCII)
_INSIDE = ("", "bin", "build/bin", "build/bin/Release")
"""Where the program lies in a folder that a user names: unpacked, installed, or built by CMake."""
_LOCK_S = 10.0
_VERSION = 1


class Manifest(BaseModel):
    """What an installed build is, as it is written into its folder, and what its self-test saw."""

    tag: str
    backend: str
    arch: str
    archives: dict[str, str]
    """The archives that it came from, and their sha256."""
    version: str
    installed_s: float
    devices: list[str] = []
    drafted: int = 0
    accepted: int = 0
    tokens_per_second: float | None = None


class _Own(BaseModel):
    name: str
    program: Path


class _Version(BaseModel):
    """What every version of engines.json can be asked."""

    version: int = _VERSION


class _State(_Version):
    current: str = AUTOMATIC
    previous: str | None = None
    pinned: bool = False
    own: list[_Own] = Field(default=[])


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """An engine of the store; `manifest` is None for one of the user's own."""

    name: str
    program: Path
    manifest: Manifest | None

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.program.parent

    @property
    def number(self) -> int | None:
        """The number of its build; None for one of the user's own."""
        return int(self.manifest.tag[1:]) if self.manifest else None


@dataclass(frozen=True, slots=True)
class Store:
    """The store at one moment: its engines, what is in use (`current`), what was before, and what must be told."""

    engines: tuple[InstalledEngine, ...]
    current: str
    previous: str | None
    pinned: bool
    notice: str | None = None

    def find(self, name: str) -> InstalledEngine:
        """Return an engine by its name, or by its tag where that is enough. Raises EngineMissing."""
        exact = [engine for engine in self.engines if engine.name == name]
        found = exact or [engine for engine in self.engines if engine.manifest and engine.manifest.tag == name]
        if len(found) == 1:
            return found[0]
        names = ", ".join(engine.name for engine in found or self.engines)
        if found:
            raise EngineMissing(f"{name} is installed {len(found)} times: {names}.", "Write one of these names.")
        hint = f"There are: {names}." if names else "`mtp-launcher engine install` installs one."
        raise EngineMissing(f"No engine is called {name}.", hint, name=name)


def read_store() -> Store:
    """Return what is there now. Nothing is written but a damaged engines.json set aside. Raises WrittenByNewer."""
    state, notice = _load()
    return _snapshot(state, notice)


def current() -> InstalledEngine | None:
    """Return the engine of the store that is in use; None when the choice is automatic or the built-in engine.

    Raises EngineMissing when it is gone.
    """
    store = read_store()
    if store.current in (AUTOMATIC, BUILT_IN_NAME):
        return None
    try:
        return store.find(store.current)
    except EngineMissing:
        raise EngineMissing(
            f"The engine in use, {store.current}, is not there any more.",
            "`mtp-launcher engine rollback` goes back to the one before, `engine use auto` to the usual choice.",
        ) from None


def is_built_in_chosen() -> bool:
    """Return whether the user wants the built-in engine whatever else is there."""
    return read_store().current == BUILT_IN_NAME


def installed_as(engine: Path) -> InstalledEngine | None:
    """Return the engine of the store that a user means by a bare name; None for what is a path."""
    if len(engine.parts) != 1 or engine.exists():
        return None
    try:
        return read_store().find(str(engine))
    except EngineMissing:
        return None


def use(name: str) -> Store:
    """Put an engine in use: one of the store, "auto" or "built-in". A pin ends. Raises EngineMissing."""
    with _changing() as state:
        _switch(state, _known(state, name))
        state.pinned = False
        return _snapshot(state)


def switch_after_install(name: str) -> bool:
    """Put a newly installed engine in use, unless another is pinned; return whether it is in use now."""
    with _changing() as state:
        if not state.pinned or state.current == name:
            _switch(state, name)
        return state.current == name


def pin(name: str | None = None) -> Store:
    """Pin an engine, the one in use by default: later installations do not take its place. Raises EngineMissing."""
    with _changing() as state:
        if name is not None:
            _switch(state, _known(state, name))
        elif state.current == AUTOMATIC:
            raise EngineMissing("No engine was chosen that could be pinned.", "Name one: `engine pin NAME`.")
        state.pinned = True
        return _snapshot(state)


def unpin() -> Store:
    """End the pin."""
    with _changing() as state:
        state.pinned = False
        return _snapshot(state)


def rollback() -> Store:
    """Put the engine in use that was before; doing it twice changes nothing. A pin ends. Raises EngineMissing."""
    with _changing() as state:
        if state.previous is None:
            raise EngineMissing("There is no engine to go back to.", "`mtp-launcher engine list` shows all.")
        try:
            _switch(state, _known(state, state.previous))
        except EngineMissing as error:
            raise EngineMissing(f"The engine before, {state.previous}, is not there any more.", error.hint) from None
        state.pinned = False
        return _snapshot(state)


def add(path: Path, name: str | None = None) -> InstalledEngine:
    """Take in an engine of the user's own: its program, or a folder that has it. It stays where it is.

    Raises EngineMissing when there is none, BadOption for a name that is taken or cannot be one.
    """
    program = program_in(expanded(path).absolute())
    chosen = name or _usual_name(program)
    if not _NAME.fullmatch(chosen) or chosen in (AUTOMATIC, BUILT_IN_NAME):
        raise BadOption(f"{chosen!r} cannot be an engine's name.", "Use letters, digits, dots and dashes: --name N.")
    with _changing() as state:
        for engine in _snapshot(state).engines:
            if engine.name == chosen and engine.program != program:
                raise BadOption(
                    f"An engine is called {chosen} already: {engine.program}.", "Give another one with --name."
                )
        state.own = [own for own in state.own if own.name != chosen] + [_Own(name=chosen, program=program)]
    return InstalledEngine(chosen, program, None)


def remove(name: str) -> tuple[InstalledEngine, int]:
    """Remove an engine from the store and return it with the bytes that were freed. The user's own are only forgotten.

    Raises EngineMissing, EngineKept when it is in use or the built-in one, and EngineBusy when it runs.
    """
    if name == BUILT_IN_NAME:
        raise EngineKept(
            "The built-in engine belongs to the program and cannot be removed.",
            "`mtp-launcher engine use NAME` puts another one in use.",
        )
    with _changing() as state:
        engine = _snapshot(state).find(name)
        if engine.name == state.current:
            pinned = " and pinned" if state.pinned else ""
            raise EngineKept(
                f"{engine.name} is in use{pinned}, so it stays.",
                "Put another one in use first: `mtp-launcher engine use NAME` (auto is the usual choice).",
            )
        freed = 0
        if engine.manifest is None:
            state.own = [own for own in state.own if own.name != engine.name]
        else:
            _refuse_running(engine)
            freed = sum(file.lstat().st_size for file in engine.folder.rglob("*") if not file.is_dir())
            discard(engine.folder)
        if state.previous == engine.name:
            state.previous = None
    return engine, freed


def put_in_place(prepared: Path, name: str, manifest: Manifest) -> InstalledEngine:
    """Make a prepared folder an engine of the store, in place of one that is damaged.

    It is there whole, or what was there stays. Raises EngineBusy when that runs.
    """
    write_atomically(prepared / MANIFEST, manifest.model_dump_json(indent=1).encode())
    target = store_dir() / name
    engine = InstalledEngine(name, target / PROGRAM, manifest)
    if target.exists():
        _refuse_running(engine)
        discard(target)
    move(prepared, target)
    return engine


def _known(state: _State, name: str) -> str:
    return name if name in (AUTOMATIC, BUILT_IN_NAME) else _snapshot(state).find(name).name


def _switch(state: _State, name: str) -> None:
    if state.current != name:
        state.previous, state.current = state.current, name


def _snapshot(state: _State, notice: str | None = None) -> Store:
    own = [InstalledEngine(each.name, each.program, None) for each in state.own]
    return Store((*_found(), *own), state.current, state.previous, state.pinned, notice)


def _found() -> list[InstalledEngine]:
    """Return the installed builds, the newest first."""
    engines = []
    for file in store_dir().glob(f"[!.]*/{MANIFEST}"):
        with suppress(OSError, ValidationError):
            manifest = Manifest.model_validate_json(file.read_bytes())
            engines.append(InstalledEngine(file.parent.name, file.parent / PROGRAM, manifest))
    return sorted(engines, key=lambda engine: (-(engine.number or 0), engine.name))


def program_in(path: Path) -> Path:
    """Return the llama-server that a path means: itself, or one in that folder. Raises EngineMissing."""
    for inside in _INSIDE if path.is_dir() else ():
        if (path / inside / PROGRAM).is_file():
            return path / inside / PROGRAM
    if path.is_dir():
        raise EngineMissing(f"There is no {PROGRAM} in {path}.", "Name the program itself.", path=str(path))
    if not path.is_file():
        raise EngineMissing(f"There is no engine {path}.", "Check the path.", path=str(path))
    return path


def _usual_name(program: Path) -> str:
    """Return the name of the folder that a program came in: that of the checkout, for one that CMake built."""
    folder = next((each for each in program.parents if each.name not in ("bin", "build", "Release", "")), None)
    return re.sub(r"[^\w.+-]+", "-", folder.name, flags=re.ASCII).strip("-.") if folder else ""


def _refuse_running(engine: InstalledEngine) -> None:
    if user := _user_of(engine):
        raise EngineBusy(f"{engine.name} runs now ({user}), so it stays.", "Stop it: `mtp-launcher stop`.")


def _user_of(engine: InstalledEngine) -> str | None:
    """Return what runs an engine now, in words, or None."""
    for entry in registry.running():
        if entry.engine == engine.name:
            return f"the server at {entry.url}"
    for process in psutil.process_iter(["pid", "exe"]):
        program = process.info["exe"]
        if program and Path(program).is_relative_to(engine.folder):
            return f"process {process.info['pid']}"
    return None


@contextmanager
def _changing() -> Iterator[_State]:
    """Yield the state under a lock and write it back when it has changed."""
    store_dir().mkdir(parents=True, exist_ok=True)
    with FileLock(store_dir() / "lock", timeout=_LOCK_S):
        state, _ = _load()
        before = state.model_dump_json()
        yield state
        if state.model_dump_json() != before:
            write_atomically(_file(), state.model_dump_json(indent=1).encode())


def _load() -> tuple[_State, str | None]:
    try:
        data = _file().read_bytes()
        if _Version.model_validate_json(data).version > _VERSION:
            raise WrittenByNewer(
                "The list of which engine is in use was written by a newer version of this program.",
                f"Use that version, or move {_file()} away: no engine is lost by that.",
            )
        return _State.model_validate_json(data), None
    except (FileNotFoundError, NotADirectoryError):
        return _State(), None
    except ValidationError:
        set_aside(_file(), "The list of which engine is in use")
        return _State(), "Which engine was in use is not known any more, for its list was damaged: none is chosen."


def _file() -> Path:
    return store_dir() / "engines.json"
