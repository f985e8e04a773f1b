"""Runs the setup program and the installed program under wine for prove.py, also with obstacles in their way."""
# ruff: noqa: S101, S607

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wine import LIMIT_S, Ended, Wine

FOLDER, VERSION = Path(sys.argv[1]), sys.argv[2]
NEWER = "99.0.1"
UNINSTALLER = "Uninstall MTP Launcher.exe"
PYTHON = FOLDER / "one" / "tree" / "python.exe"
"""The build's Windows Python, which is not the installed one."""
HERE = Path(__file__).resolve().parent
UNINSTALL_KEY = r"Software\Microsoft\Windows\CurrentVersion\Uninstall\MTP Launcher"
RUN_KEY = r"Software\Microsoft\Windows\CurrentVersion\Run"

wine = Wine(FOLDER / "prefix", PYTHON)
SETUP = FOLDER / "one" / "dist" / f"mtp-launcher-{VERSION}-setup.exe"
NEWER_SETUP = FOLDER / "newer" / "dist" / f"mtp-launcher-{NEWER}-setup.exe"
PLACE = wine.user / "Jürgen Åse" / "mtp läuncher"
DATA = wine.user / "AppData" / "Local" / "mtp-launcher"
LOG = wine.user / "Temp" / "mtp-launcher-setup.log"
PROGRAMS = wine.user / "AppData" / "Roaming" / "Microsoft" / "Windows" / "Start Menu" / "Programs"


def install(setup: Path = SETUP, place: Path = PLACE, code: int = 0) -> Ended:
    """Run setup silently; the exit code must be `code`."""
    ended = wine.run(f'"{wine.path(setup)}" /S /D={wine.path(place)}')
    assert ended.code == code, f"exit code {ended.code}: {take_message()} {ended.output}"
    return ended


def uninstall(*words: str, place: Path = PLACE) -> float:
    """Run the uninstaller silently and wait until it is done; return how long it took in seconds."""
    began_s = time.monotonic()
    wine.run(f'"{wine.path(place / UNINSTALLER)}" /S {" ".join(words)}')
    wait_for(lambda: not place.exists(), f"{place.name} is still there: {[*place.rglob('*')][:5]}")
    return time.monotonic() - began_s


def uninstall_by_hand(*unticked: str, place: Path = PLACE) -> dict[str, bool]:
    """Run the uninstaller as Apps & Features does, untick boxes by words in their texts; return what was ticked."""
    uninstaller = wine.start(f'"{wine.path(place / UNINSTALLER)}"')
    words = " ".join(unticked)
    pressed = wine.run(f'"{wine.path(PYTHON)}" -X utf8 "{wine.path(HERE / "press.py")}" {words}')
    assert pressed.code == 0, pressed.output
    wait_for(lambda: not place.exists(), f"{place.name} is still there: {[*place.rglob('*')][:5]}")
    uninstaller.communicate()
    boxes: dict[str, bool] = json.loads(pressed.output)
    return boxes


def take_message() -> str:
    """Return the sentence with which setup has ended, and delete it."""
    try:
        text = LOG.read_text("utf-16").strip()
    except OSError:
        return ""
    LOG.unlink()
    return text


def wait_for(what: Callable[[], bool], otherwise: str, limit_s: float = LIMIT_S) -> None:
    """Wait until a condition is true."""
    began_s = time.monotonic()
    while not what():
        assert time.monotonic() - began_s < limit_s, otherwise
        time.sleep(0.05)


def launcher(*words: str, place: Path = PLACE) -> str:
    """Return a command line that runs the installed program."""
    return " ".join([f'"{wine.path(place / "app" / "python.exe")}"', "-m", "launcher", *words])


def run_command(*words: str, code: int = 0) -> str:
    """Run one command of the installed program and return what it printed."""
    ended = wine.run(launcher(*words))
    assert ended.code == code, f"exit code {ended.code}: {ended.output}"
    return ended.output


def version(place: Path = PLACE) -> str:
    """Return the version that the installed program reports."""
    return wine.run(launcher("--version", place=place)).output.strip().removeprefix("mtp-launcher ")


def contents(build: str) -> dict[str, str]:
    """Return the installed files of a build's list of contents."""
    [listing] = (FOLDER / build / "dist").glob("*.contents.json")
    files: dict[str, str] = json.loads(listing.read_text("utf-8"))["files"]
    return files


def check_installed(build: str, place: Path = PLACE) -> int:
    """Compare what is installed with the list of contents, byte by byte; return the number of files."""
    app = place / "app"
    found = {
        str(path.relative_to(app)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in app.rglob("*")
        if path.is_file()
    }
    assert found == contents(build), sorted(found.items() ^ contents(build).items())[:5]
    assert sorted(each.name for each in place.iterdir()) == [UNINSTALLER, "app"], [*place.iterdir()]
    return len(found)


@contextmanager
def serving() -> Iterator[tuple["subprocess.Popen[str]", dict[str, object]]]:
    """Serve the demo with the installed program."""
    process = wine.start(launcher("serve", "--model", "demo", "--json"))
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def processes(word: str) -> list[int]:
    """Return the pids of wine's programs whose command line contains a word."""
    found = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdecimal() and word in (each / "cmdline").read_bytes().decode("utf-8", "replace"):
                environment = (each / "environ").read_bytes()
                if os.fsencode(f"WINEPREFIX={FOLDER / 'prefix'}") in environment:
                    found.append(int(each.name))
    return found


@contextmanager
def holding(name: str) -> Iterator[None]:
    """Let a program that ignores all requests to end hold a mutex."""
    hold = wine.start(f'"{wine.path(PYTHON)}" "{wine.path(HERE / "hold.py")}" "{name}"')
    try:
        assert hold.stdout is not None
        assert "held" in hold.stdout.readline()
        yield
    finally:
        end("hold.py", hold)


def end(word: str, started: "subprocess.Popen[str]") -> None:
    """End wine's programs whose command line contains a word by force, and wait for the process that started them."""
    for pid in processes(word):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    started.communicate()


@contextmanager
def small_disk(options: str) -> Iterator[Path]:
    """Provide a disk with these mount options as wine's drive F:."""
    disk, letter = FOLDER / "disk", FOLDER / "prefix" / "dosdevices" / "f:"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(disk)], check=True)
    letter.symlink_to(disk)
    try:
        yield disk
    finally:
        letter.unlink()
        wine.end_programs()
        subprocess.run(["umount", str(disk)], check=True)
        wine.start_desktop()


def cut_off(setup: Path, place: Path) -> None:
    """End setup by force while it unpacks, and remove its folder for plug-ins, which then stays in Temp."""
    temporary = set((wine.user / "Temp").iterdir())
    process = wine.start(f'"{wine.path(setup)}" /S /D={wine.path(place)}')
    new = place / "app.new"
    wait_for(lambda: new.exists() and sum(1 for _ in new.rglob("*")) > 800, "setup does not unpack")
    end(setup.name, process)
    assert new.exists()
    for each in set((wine.user / "Temp").iterdir()) - temporary:
        shutil.rmtree(each) if each.is_dir() else each.unlink()
