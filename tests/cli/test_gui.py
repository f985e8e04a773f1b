"""`mtp-launcher gui` before it loads Qt: the choice of a display, and where its errors are shown."""

import argparse
import io
import os
import socket
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from launcher.cli import error_dialog, gui

PLATFORM = "QT_QPA_PLATFORM"


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Servers for X11 and Wayland listen, as WSLg's do."""
    with socket.socket() as x11, socket.socket(socket.AF_UNIX) as wayland:
        x11.bind(("127.0.0.1", 0))
        wayland.bind(str(tmp_path / "wayland-0"))
        x11.listen()
        wayland.listen()
        monkeypatch.setenv("DISPLAY", f"127.0.0.1:{x11.getsockname()[1] - 6000}")
        monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.delenv(PLATFORM, raising=False)
        yield


def read_chosen_platform(monkeypatch: pytest.MonkeyPatch, wsl: int | None) -> str | None:
    """Return the platform that is set for Qt when the window is opened, on this version of WSL."""
    monkeypatch.setattr(gui, "wsl_version", lambda: wsl)
    received: list[str | None] = []

    def open_window(_: argparse.Namespace) -> int:
        received.append(os.environ.get(PLATFORM))
        return 0

    assert gui.run(argparse.Namespace(screenshot=None), open_window) == 0
    return received[0]


@pytest.mark.parametrize(("wsl", "platform"), [(2, "xcb"), (None, None)])
def test_in_wsl_the_window_uses_x11(
    displays: None, monkeypatch: pytest.MonkeyPatch, wsl: int | None, platform: str | None
) -> None:
    monkeypatch.setenv(PLATFORM, "")  # registers the variable, so that monkeypatch restores it
    assert read_chosen_platform(monkeypatch, wsl) == platform


def test_a_platform_chosen_by_the_user_is_kept_in_wsl(displays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLATFORM, "offscreen")
    assert read_chosen_platform(monkeypatch, 2) == "offscreen"


def test_without_x11_in_wsl_qt_chooses_the_platform(displays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLATFORM, "")
    monkeypatch.delenv("DISPLAY")
    assert read_chosen_platform(monkeypatch, 2) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"XDG_ACTIVATION_TOKEN": "token"}, True),
        ({"DESKTOP_STARTUP_ID": "id"}, True),
        ({"GIO_LAUNCHED_DESKTOP_FILE_PID": str(os.getpid())}, True),
        ({"GIO_LAUNCHED_DESKTOP_FILE_PID": "1", "DESKTOP_STARTUP_ID": "id"}, False),  # the terminal's own
    ],
)
def test_a_start_from_a_menu_is_recognised_by_the_environment(environment: dict[str, str], *, expected: bool) -> None:
    with redirect_stderr(io.StringIO()):
        assert error_dialog.is_started_from_menu(environment) is expected


def test_a_start_in_a_terminal_is_recognised() -> None:
    controlling, terminal = os.openpty()
    with os.fdopen(controlling), os.fdopen(terminal, "w") as stream, redirect_stderr(stream):
        assert not error_dialog.is_started_from_menu({"XDG_ACTIVATION_TOKEN": "token"})
