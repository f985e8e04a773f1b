"""Proves the Windows setup program in the order of a user's steps: prove.py FOLDER VERSION WINE_PROOFS [WORDS ...].

FOLDER (see ../windows-setup) contains the builds "one" and "newer", the checkouts, a wine prefix and pytest. Prints one
line per proof, "ok   ..." or "FAIL ...", and at the end "done". With WORDS, only proofs run whose names contain one.
"""
# ruff: noqa: S101, T201

import hashlib
import json
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from installed import (
    DATA,
    FOLDER,
    HERE,
    NEWER,
    NEWER_SETUP,
    PLACE,
    PROGRAMS,
    RUN_KEY,
    SETUP,
    UNINSTALL_KEY,
    UNINSTALLER,
    VERSION,
    check_installed,
    cut_off,
    holding,
    install,
    launcher,
    run_command,
    serving,
    small_disk,
    take_message,
    uninstall,
    uninstall_by_hand,
    version,
    wait_for,
    wine,
)
from wine import LIMIT_S

WINE_PROOFS, WORDS = Path(sys.argv[3]), sys.argv[4:]
sys.path.insert(0, str(HERE.parent / "release-gate.d"))
import use  # noqa: E402 -- a module in .ci/release-gate.d

_PROOFS: list[tuple[str, Callable[[], str]]] = []
_before: dict[str, int] = {}
_registry_before: set[str] = set()


def proof(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a proof; it returns the figures to print, or raises."""

    def add(function: Callable[[], str]) -> Callable[[], str]:
        _PROOFS.append((name, function))
        return function

    return add


# ------------------------------------------------------------------------------------------------- the first install


@proof("silent install to a path with spaces and letters beyond ASCII (wanted: under 30 s)")
def _install() -> str:
    PLACE.parent.mkdir()
    ended = install()
    number = check_installed("one")
    used = sum(path.stat().st_size for path in PLACE.rglob("*") if path.is_file())
    return f"{ended.seconds:.1f} s, {number} files as listed, {used / 1e6:.0f} MB in {wine.path(PLACE)}"


@proof("Apps & Features knows it, and how it is removed")
def _listed() -> str:
    shown = {
        name: wine.value(UNINSTALL_KEY, name)
        for name in ("DisplayName", "DisplayVersion", "InstallLocation", "QuietUninstallString", "DisplayIcon")
    }
    assert shown["DisplayVersion"] == VERSION, shown
    assert shown["InstallLocation"] == wine.path(PLACE), shown
    assert shown["QuietUninstallString"] == f'"{wine.path(PLACE)}\\{UNINSTALLER}" /S', shown
    return f"{shown['DisplayName']} {shown['DisplayVersion']}"


@proof("the Start menu has the window and a command line")
def _shortcuts() -> str:
    window = (PROGRAMS / "MTP Launcher.lnk").read_bytes().decode("utf-16-le", "replace")
    window += (PROGRAMS / "MTP Launcher.lnk").read_bytes()[1:].decode("utf-16-le", "replace")
    assert "pythonw.exe" in window, window
    assert "-m launcher" in window, window
    line = wine.run(f'cmd /c "set "PATH={wine.path(PLACE)}\\app;%PATH%" & mtp-launcher --version"')
    assert VERSION in line.output, line.output
    identity = "with" if "MTPLauncher.MTPLauncher" in window else "without (wine keeps none)"
    return f"{[each.name for each in sorted(PROGRAMS.glob('MTP*'))]}, {identity} the taskbar's identity"


@proof("nothing outside this user's own profile and registry was written: a second user's copy is the second user's")
def _second_user() -> str:
    profile = str(wine.user.relative_to(wine.drive))
    outside = [name for name in wine.files() if name not in _before and not name.startswith(profile)]
    assert not outside, outside
    added = [line for line in wine.registry() - _registry_before if line.startswith("system.reg")]
    assert not any("launcher" in line.lower() for line in added), added
    return "no file, no key of the computer"


# ---------------------------------------------------------------------------------------------------------- its use


@proof("doctor --json")
def _doctor() -> str:
    report = json.loads(run_command("doctor", "--json"))
    assert report["demo_can_run"], report
    assert str(report["host"]["system"]).startswith("Windows"), report["host"]
    return f"{report['host']['system']}, {report['engines'][0]['version']}; {report['no_gpu_because']}"


def _start(*words: str) -> "subprocess.Popen[str]":
    return wine.start(launcher(subprocess.list2cmdline(words)))


_copy = use.Copy(_start, FOLDER / "use", wine.path)
_PROOFS.extend((name, partial(function, _copy)) for name, function in use.FIRST.items())


@proof("Open with, of a .gguf file: the command that Windows is told opens the window with that file")
def _open_with() -> str:
    classes, kind = r"Software\Classes", "MTPLauncher.gguf"
    assert wine.value(rf"{classes}\.gguf\OpenWithProgids", kind) == "", "a .gguf file does not name the program"
    command = wine.value(rf"{classes}\{kind}\shell\open\command", "")
    assert command, "there is no command"
    model = wine.user / "Documents" / "modèle 模型.gguf"
    shutil.copy(next(DATA.rglob("mtp-demo.gguf")), model)
    picture = FOLDER / "opened.png"
    picture.unlink(missing_ok=True)
    # The exit code is ignored: it also tells whether live data came in time, which is not proved here.
    wine.run(command.replace("%1", wine.path(model)) + f' --screenshot "{wine.path(picture)}"')
    model.unlink()
    assert picture.stat().st_size > 50_000, picture.stat()
    return command


@proof("not a file of the program was changed by its use")
def _unchanged() -> str:
    return f"{check_installed('one')} files"


@proof("the tests that can run here, against the installed program")
def _tests() -> str:
    testing, checkout = FOLDER / "testing", FOLDER / "checkout-tests"
    shutil.rmtree(checkout, ignore_errors=True)
    shutil.copytree(FOLDER / "checkout", checkout, ignore=shutil.ignore_patterns("launcher", ".git"))
    python = wine.path(PLACE / "app" / "python.exe")
    line = f'"{python}" -X utf8 -B "{wine.path(HERE / "tests.py")}" "{wine.path(testing)}" "{wine.path(checkout)}"'
    ended = wine.run(line)
    for each in (wine.user / "Temp").glob("pytest-of-*"):
        shutil.rmtree(each)
    tail = "\n".join(ended.output.splitlines()[-20:])
    assert ended.code == 0, tail or wine.error_tail()
    return ended.output.strip().splitlines()[-1]


# ------------------------------------------------------------------------------------------------- bad luck at a start


@proof("a folder with other files: refused, and they stay")
def _foreign() -> str:
    theirs = wine.user / "Documents" / "theirs"
    for name in ("notes.txt", "app/notes.txt", "uninstall.exe"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text("mine")
    install(place=theirs, code=5)
    assert [(theirs / name).read_text() for name in ("notes.txt", "app/notes.txt", "uninstall.exe")] == ["mine"] * 3
    assert len([*theirs.rglob("*")]) == 4, [*theirs.rglob("*")]
    shutil.rmtree(theirs)
    return take_message()


@proof("a folder that cannot be made: said")
def _no_folder() -> str:
    file = wine.user / "Documents" / "file"
    file.write_text("no folder")
    install(place=file / "launcher", code=5)
    file.unlink()
    return take_message()


@proof("a download that was cut short does nothing")
def _cut() -> str:
    cut = FOLDER / "cut-setup.exe"
    cut.write_bytes(SETUP.read_bytes()[:-1_000_000])
    place = wine.user / "cut"
    ended = wine.run(f'"{wine.path(cut)}" /S /D={wine.path(place)}')
    assert ended.code != 0
    assert not place.exists()
    return f"exit code {ended.code}"


@proof("setup while another one runs: refused")
def _twice() -> str:
    with holding(r"Local\MTP Launcher: setup"):
        install(place=wine.user / "twice", code=2)
    assert not (wine.user / "twice").exists()
    return take_message()


@proof("a disk without room: said before anything is unpacked")
def _no_room() -> str:
    with small_disk("size=100m") as disk:
        ended = wine.run(f'"{wine.path(SETUP)}" /S /D=F:\\MTP Launcher')
        left = [*disk.iterdir()]
    assert ended.code == 4, (ended, take_message())
    assert not left, left
    return take_message()


@proof("a disk that fills up while setup unpacks: all taken back; with an older version there, that still runs")
def _fills_up() -> str:
    with small_disk("size=1g,nr_inodes=1500") as disk:
        first = wine.run(f'"{wine.path(SETUP)}" /S /D=F:\\MTP Launcher')
        left = [*disk.iterdir()]
    sentence = take_message()
    assert first.code == 2, first
    assert not left, left
    # The entry in Apps is that of the other copy.
    assert wine.value(UNINSTALL_KEY, "InstallLocation") == wine.path(PLACE)
    there = 1 + sum(1 for _ in PLACE.rglob("*"))
    with small_disk(f"size=1g,nr_inodes={there + 500}") as disk:
        assert wine.run(f'"{wine.path(SETUP)}" /S /D=F:\\MTP Launcher').code == 0
        second = wine.run(f'"{wine.path(NEWER_SETUP)}" /S /D=F:\\MTP Launcher')
        assert second.code == 2, second
        take_message()
        check_installed("one", disk / "MTP Launcher")
        still = wine.run(r'"F:\MTP Launcher\app\python.exe" -m launcher --version').output.split()[-1]
        assert still == VERSION, still
    return sentence


@proof("an upgrade that is cut off half-way: the old version still runs, and running it again finishes the job")
def _half_upgrade() -> str:
    cut_off(NEWER_SETUP, PLACE)
    assert version() == VERSION, version()
    left = sum(1 for _ in (PLACE / "app.new").rglob("*"))
    ended = install(SETUP)
    check_installed("one")
    return f"{left} files were left of it; the second run took {ended.seconds:.1f} s"


@proof("/D in quotes, as PowerShell and people write it; the folders that setup made for it go with the program")
def _quoted() -> str:
    parent = wine.drive / "a new folder"
    place = parent / "of mine" / "mtp läuncher"
    for option in (f'"/D={wine.path(place)}"', f'/D="{wine.path(place)}\\"'):
        ended = wine.run(f'"{wine.path(SETUP)}" /S {option}')
        assert ended.code == 0, f"{option}: {ended.code} {take_message()}"
        check_installed("one", place)
        assert wine.value(UNINSTALL_KEY, "InstallLocation") == wine.path(place)
        uninstall(place=place)
        assert not parent.exists(), [*parent.rglob("*")]
    refused = wine.run(f'"{wine.path(SETUP)}" /S "/D=my folder"')
    assert refused.code == 5, refused
    install()
    return take_message()


@proof("a first install that is cut off half-way: running it again finishes the job; so does removing it")
def _half_first() -> str:
    place = wine.user / "模型 half"
    cut_off(SETUP, place)
    install(place=place)
    check_installed("one", place)
    uninstall(place=place)
    cut_off(SETUP, place)
    uninstall(place=place)
    install()
    return "both"


@proof("of copies in two folders, one is removed: what both share stays with the one that Windows knows")
def _two_folders() -> str:
    other = wine.user / "another folder"
    run_command("settings", "set", "language", "zh_CN")
    shortcut = PROGRAMS / "MTP Launcher.lnk"
    for place, removed in ((other, PLACE), (PLACE, other)):
        install(place=place)
        uninstall(place=removed)
        assert wine.value(UNINSTALL_KEY, "InstallLocation") == wine.path(place)
        assert shortcut.exists()
        assert any("zh_CN" in path.read_text("utf-8") for path in DATA.rglob("settings.toml"))
        check_installed("one", place)
    run_command("settings", "reset", "language")
    return "settings, shortcuts and the entry in Apps"


# ------------------------------------------------------------------------------------------------ upgrade, running copy


@proof("an upgrade ends what runs, in order, and takes its place; settings and history stay")
def _upgrade() -> str:
    use.keep_state(_copy)
    before = {str(path) for path in DATA.rglob("*") if path.is_file()}
    window = wine.start(launcher("gui").replace("python.exe", "pythonw.exe"))
    wait_for(lambda: (DATA / "window.lock").exists(), "the window does not open")
    run_command("gui")  # it answers the second start: it has come up
    with serving() as (server, ready):
        assert "url" in ready, ready
        ended = install(NEWER_SETUP)
        server_code, window_code = server.wait(LIMIT_S), window.wait(LIMIT_S)
    assert (server_code, window_code) == (0, 0), (server_code, window_code)
    assert version() == NEWER, version()
    check_installed("newer")
    app = PLACE / "app" / "Lib" / "site-packages" / "launcher" / "_data" / "presets"
    assert (app / "newer-schema.json").exists()
    assert not (app / "schema.json").exists(), "a file of the old version is left"
    assert wine.value(UNINSTALL_KEY, "DisplayVersion") == NEWER
    same = use.compare_state(_copy)
    kept = {str(path) for path in DATA.rglob("*") if path.is_file()}
    assert not {name for name in before - kept if "run" not in Path(name).parts}, before - kept
    return f"{same}; {ended.seconds:.1f} s with a server and a window that ran; both ended with exit code 0"


@proof("a copy that does not end: said, and the installed version stays whole")
def _does_not_end() -> str:
    with holding(r"Local\MTP Launcher"):
        install(SETUP, code=3)
    check_installed("newer")
    return take_message()


@proof("running the older setup again goes back to the older version")
def _back() -> str:
    install(SETUP)
    check_installed("one")
    return version()


# ------------------------------------------------------------------------------------------------------- the end of it


@proof("removed silently while it runs: what is the user's stays, and nothing starts at login")
def _keep_all() -> str:
    run_command("settings", "set", "language", "zh_CN")
    run_command("autostart", "on")
    assert wine.value(RUN_KEY, "MTP Launcher"), "autostart is not on"
    model = DATA / "models" / "maker" / "model.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"a model")
    before = _users_files()
    assert {"settings.toml", "history/history.db", "conversations/conversations.db"} <= before.keys(), before.keys()
    with serving() as (server, _):
        took_s = uninstall()
        assert server.wait(LIMIT_S) == 0
    kept = _users_files()
    assert not before.keys() - kept.keys(), before.keys() - kept.keys()
    assert all(kept[name] == before[name] for name in _KEPT), [*_KEPT]
    assert not {"Cache", "logs", "run"} & {each.name for each in DATA.iterdir()}, [*DATA.iterdir()]
    assert wine.value(RUN_KEY, "MTP Launcher") is None
    return f"{took_s:.1f} s; {len(kept)} files of the user's are left, the model among them"


@proof("installed again: settings, history and conversations are those from before")
def _there_again() -> str:
    install()
    assert "zh_CN" in run_command("settings", "get", "language")
    run_command("settings", "reset", "language")
    measured = json.loads(run_command("history", "list", "--json"))["measurements"]
    chats = json.loads(run_command("chats", "list", "--json"))["conversations"]
    assert measured, "the history is empty"
    assert chats, "there are no conversations"
    return f"{len(measured)} measurements, {len(chats)} conversations"


@proof("the uninstaller's page asks, and keeps all unless it is told otherwise")
def _page() -> str:
    before = _users_files()
    boxes = uninstall_by_hand()
    assert len(boxes) == 2, boxes
    assert all(boxes.values()), boxes
    kept = _users_files()
    assert all(kept[name] == before[name] for name in _KEPT), [*_KEPT]
    return ", ".join(boxes)


@proof("what is unticked on that page goes, and the models stay")
def _unticked() -> str:
    install()
    uninstall_by_hand("settings")
    assert [path.name for path in DATA.rglob("*") if path.is_file()] == ["model.gguf"], [*DATA.rglob("*")]
    assert [each.name for each in DATA.iterdir()] == ["models"]
    return "only the models are left"


@proof("installed again and removed with all that is the user's: nothing is left, in files or registry")
def _nothing_left() -> str:
    install()
    run_command("demo", "--headless")
    uninstall("/SETTINGS=remove", "/MODELS=remove")
    PLACE.parent.rmdir()
    registry = wine.registry()
    left = sorted(name for name in wine.files().keys() - _before.keys() if not _is_windows_own(name))
    assert not left, left
    keys = sorted(line for line in registry - _registry_before if re.search("launcher|mtp", line, re.IGNORECASE))
    assert not keys, keys
    return f"{len(_before)} files and folders before and after, but for the copy of itself that Windows keeps in Temp"


_KEPT = ("settings.toml", "history/history.db", "conversations/conversations.db", "models/maker/model.gguf")


def _users_files() -> dict[str, str]:
    """Return the hashes of the program's files by their paths, without caches, logs and the runtime folder."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in DATA.rglob("*")
        if path.is_file() and not (name := path.relative_to(DATA).as_posix()).startswith(("Cache/", "logs/", "run/"))
    }


def _is_windows_own(name: str) -> bool:
    """Whether a path belongs to wine itself, or to the copy of an uninstaller that NSIS runs from the user's Temp."""
    return bool(re.search(r"/Temp/~nsu\w*\.tmp(/|$)", name)) or name.startswith("windows/")


def main() -> None:
    """Run every proof, in the order in which a user would do these things."""
    _copy.folder.mkdir(exist_ok=True)
    wine.run("cmd /c exit")  # the first program makes wine create its own files
    _registry_before.update(wine.registry())
    _before.update(wine.files())
    for name, function in _PROOFS:
        if WORDS and not any(words in name for words in WORDS):
            continue
        try:
            verdict, result = "ok  ", function()
        except Exception as error:  # noqa: BLE001 -- whatever it was, the others are tried too
            where = traceback.extract_tb(error.__traceback__)[-1]
            verdict, result = "FAIL", f"{type(error).__name__} in line {where.lineno} of {where.name}: {error}"
        print(f"{verdict} {name}: {result}".replace(str(FOLDER), "FOLDER"), flush=True)
        if function is _unchanged:
            _supervision()
    wine.end_programs()
    print("done", flush=True)


def _supervision() -> None:
    """Run .ci/wine's proofs by the installed Python: its lines are printed as they are."""
    python = wine.path(PLACE / "app" / "python.exe")
    fake = FOLDER / "checkout" / "tests" / "fakes" / "llama_server.py"
    ended = wine.run(f'"{python}" -X utf8 -B "{wine.path(WINE_PROOFS)}" "{wine.path(fake)}"')
    for line in ended.output.splitlines():
        if line.startswith(("ok   ", "FAIL ")):
            print(line.replace(str(FOLDER), "FOLDER"), flush=True)
    if "done prove" not in ended.output:
        print(f"FAIL .ci/wine's proofs did not come to their end: {ended.output[-500:]}", flush=True)


if __name__ == "__main__":
    main()
