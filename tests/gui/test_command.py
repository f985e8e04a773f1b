"""`mtp-launcher gui` as a process: pictures, one window per user, signals, exceptions in slots."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PySide6.QtGui import QImage

from launcher.engine.server.registry import list_entries
from tests import forked
from tests.cli import in_process

pytestmark = pytest.mark.usefixtures("forked_commands")
COMMAND = [sys.executable, "-m", "launcher"]
OFFSCREEN = {"QT_QPA_PLATFORM": "offscreen"}


def gui(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run("gui", *arguments, env=os.environ | OFFSCREEN | environment, timeout=180)


@contextmanager
def open_window(*arguments: str) -> Iterator[forked.Program | subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with forked.start("gui", *arguments, stdout=pipe, stderr=pipe, env=os.environ | OFFSCREEN) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(120)


def wait_until_it_listens(home: Path) -> None:
    deadline = time.monotonic() + 120
    while not (home / "state" / "window.lock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def status() -> list[dict[str, str]]:
    servers: list[dict[str, str]] = json.loads(in_process.run("status", "--json").stdout)
    return servers


def wait_until_it_serves() -> dict[str, str]:
    """Return the entry that `status` prints for the server once it is ready."""
    deadline = time.monotonic() + 120
    while not any(entry.first.state == "ready" for entry in list_entries()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return status()[0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_is_taken_and_says_when_the_window_was_painted(tmp_path: Path, theme: str) -> None:
    picture = tmp_path / "window.png"
    result = subprocess.run(  # the whole process, to the end of Python
        [*COMMAND, "gui", "--screenshot", str(picture), "--theme", theme, "--size", "1100x700"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=os.environ | OFFSCREEN,
    )
    assert result.returncode == 0, result.stderr
    assert 0 < json.loads(result.stdout)["painted_s"] < 30
    image = QImage(str(picture))
    assert (image.width(), image.height()) == (1100, 700)
    assert (image.pixelColor(500, 2).lightness() < 128) == (theme == "dark")


@pytest.mark.thorough
def test_a_picture_with_the_demo_has_live_data(tmp_path: Path) -> None:
    still, live = tmp_path / "still.png", tmp_path / "live.png"
    gui("--screenshot", str(still), "--size", "1100x700")
    code = "from launcher.gui import screenshot\nscreenshot._LEAST_SAMPLES = 8\nfrom launcher.entry import run\nrun()\n"
    result = subprocess.run(
        [sys.executable, "-c", code, "gui", "--screenshot", str(live), "--size", "1100x700", "--demo"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=os.environ | OFFSCREEN,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    answer = json.loads(result.stdout)
    assert "problem" not in answer
    assert answer["plots"]["rate"]["tokens_per_second"] > 0
    assert answer["plots"]["processor"]["host_cpu_percent"] > 0
    assert QImage(str(live)) != QImage(str(still))


def test_a_picture_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    result = gui("--screenshot", str(tmp_path / "no" / "such" / "folder.png"))
    assert result.returncode == 1
    assert "could not be written" in json.loads(result.stdout)["problem"]


@pytest.mark.parametrize("size", ["big", "10x10", "1280"])
def test_an_invalid_window_size_is_wrong_usage(size: str) -> None:
    assert gui("--size", size).returncode == 2


def test_a_second_start_raises_the_first_window_and_leaves(home: Path) -> None:
    with open_window() as first:
        wait_until_it_listens(home)
        second = gui()
        assert second.returncode == 0, second.stderr
        assert first.poll() is None
    third = gui("--screenshot", str(home / "after.png"))
    assert third.returncode == 0


def test_a_file_given_to_a_second_start_is_served_by_the_first(home: Path, demo_model: Path) -> None:
    with open_window():
        wait_until_it_listens(home)
        assert gui(str(demo_model)).returncode == 0
        assert wait_until_it_serves()["model"] == "mtp-demo"
    assert status() == []


@pytest.mark.thorough
def test_a_second_start_with_the_demo_starts_it_in_the_first(home: Path) -> None:
    with open_window():
        wait_until_it_listens(home)
        assert gui("--demo").returncode == 0
        assert wait_until_it_serves()["model"] == "demo"


def test_a_display_that_does_not_answer_is_reported_before_qt_aborts() -> None:
    result = gui(QT_QPA_PLATFORM="", DISPLAY=":54321", WAYLAND_DISPLAY="")
    assert result.returncode == 1
    assert "No display is available" in result.stderr


def test_a_library_that_a_display_needs_is_named_before_qt_aborts(tmp_path: Path) -> None:
    (tmp_path / "libxcb-cursor.so.0").touch()  # the linker finds this invalid library first
    result = gui(QT_QPA_PLATFORM="xcb", LD_LIBRARY_PATH=str(tmp_path))
    assert result.returncode == 1, result.stderr
    assert "The window needs libxcb-cursor.so.0." in result.stderr
    assert "libxcb-cursor0" in result.stderr


def test_an_error_of_a_start_from_a_menu_is_reported_in_a_dialog(tmp_path: Path) -> None:
    completed, dialog = tmp_path / "completed", tmp_path / "zenity"
    os.mkfifo(completed)
    dialog.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{completed}"\n')
    dialog.chmod(0o755)
    no_display = {"QT_QPA_PLATFORM": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    result = gui(PATH=f"{tmp_path}:{os.environ['PATH']}", XDG_ACTIVATION_TOKEN="a-token", **no_display)
    assert result.returncode == 1
    arguments = completed.read_text()
    assert arguments.startswith("--error\n")
    assert "neither DISPLAY nor WAYLAND_DISPLAY is set.\n\nRun `mtp-launcher demo`" in arguments


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM])
def test_a_signal_closes_the_window_and_stops_the_server(number: signal.Signals) -> None:
    pipe = subprocess.PIPE
    with forked.start("gui", "--demo", stdout=pipe, stderr=pipe, env=os.environ | OFFSCREEN) as process:
        wait_until_it_serves()
        process.send_signal(number)
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert status() == []


def test_without_a_display_the_command_says_what_to_do() -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment.pop("QT_QPA_PLATFORM", None)
    command = [*COMMAND, "gui"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        "Error: No display is available for the window: neither DISPLAY nor WAYLAND_DISPLAY is set.\n"
        "       Run `mtp-launcher demo` in the terminal.\n"
    )


@pytest.mark.parametrize(
    ("variable", "value", "platform"),
    [("WAYLAND_DISPLAY", "left", ""), ("DISPLAY", "none", ""), ("DISPLAY", ":54321", "xcb")],
)
def test_a_display_server_that_has_ended_is_named_before_qt_aborts(
    tmp_path: Path, variable: str, value: str, platform: str
) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(tmp_path / "left"))  # a socket that a crash has left
    none = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    result = gui(**none | {variable: value, "QT_QPA_PLATFORM": platform})
    assert result.returncode == 1
    expected = f"Error: No display is available for the window: nothing answers at {variable}={value}.\n"
    assert result.stderr.startswith(expected)


def test_an_exception_in_a_slot_is_shown_and_logged(home: Path) -> None:
    code = (
        "import sys\n"
        "from PySide6.QtWidgets import QApplication\n"
        "from PySide6.QtCore import QTimer\n"
        "from launcher.gui import application\n"
        "from launcher.gui.window import Window\n"
        "app = QApplication([])\n"
        "window = Window(remember=False)\n"
        "application._report_slot_exceptions(window)\n"
        "window.show()\n"
        "def slot():\n"
        "    raise ValueError('a slot broke')\n"
        "QTimer.singleShot(0, slot)\n"
        "QTimer.singleShot(100, lambda: (print(window.controller.view.problem), app.exit(0)))\n"
        "sys.exit(app.exec())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | OFFSCREEN
    )
    assert "a slot broke" in result.stdout
    assert "Traceback" in (home / "state" / "logs" / "window.log").read_text()


@pytest.mark.thorough
def test_a_damaged_settings_file_is_reported_in_the_window(home: Path) -> None:
    code = (
        "import sys\n"
        "from launcher.gui import application\n"
        "painted = application._on_first_paint\n"
        "def then(window, *rest):\n"
        "    painted(window, *rest)\n"
        "    print(window.notice.isVisible(), window.notice.text.text())\n"
        "    window.quit()\n"
        "application._on_first_paint = then\n"
        "from launcher.cli.main import main\n"
        "sys.exit(main(['gui'], application.run_window))\n"
    )
    file = home / "config" / "settings.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[window\n")
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.startswith("True The settings file was damaged")
    assert file.with_name("settings.toml.bad").is_file()
