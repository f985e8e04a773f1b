"""Answers the uninstaller's pages as a person does: press.py [WORD ...] by a Windows Python.

Waits for the page that asks, prints its boxes and whether each is ticked as JSON, unticks those with a WORD in their
text, presses Uninstall and at the end Close.
"""
# ruff: noqa: T201

import ctypes
import json
import sys
import time
from collections.abc import Callable
from ctypes import wintypes
from typing import Any

TITLE = "MTP Launcher Uninstall"
LIMIT_S = 300.0  # while files are removed the button is "Close" already, but disabled: 43 s on a busy machine
_CHECKED, _SET_CHECK, _COMMAND, _NEXT = 0x00F0, 0x00F1, 0x0111, 1
_user = ctypes.WinDLL("user32")
_user.FindWindowW.restype = _user.GetDlgItem.restype = wintypes.HWND
_VISIT = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.HWND, wintypes.LPARAM)


def wait_for(what: Callable[[], Any], otherwise: str) -> Any:  # noqa: ANN401 -- whatever is waited for
    """Return the result of `what` as soon as it is true."""
    began_s = time.monotonic()
    while not (found := what()):
        if time.monotonic() - began_s > LIMIT_S:
            sys.exit(otherwise)
        time.sleep(0.05)
    return found


def text_of(window: int) -> str:
    """Return a window's text."""
    text = ctypes.create_unicode_buffer(500)
    _user.GetWindowTextW(window, text, 500)
    return text.value


def boxes(page: int) -> dict[str, int]:
    """Return the page's boxes to tick, by their texts."""
    found = {}

    def visit(window: int, _: int) -> bool:
        # The types of buttons that are boxes to tick: BS_CHECKBOX and BS_AUTOCHECKBOX.
        if _user.IsWindowVisible(window) and _user.GetWindowLongW(window, -16) & 0xF in (2, 3):
            found[text_of(window)] = window
        return True

    _user.EnumChildWindows(page, _VISIT(visit), 0)
    return {text: window for text, window in found.items() if text.startswith("Keep ")}


def main(words: list[str]) -> None:
    """Untick the boxes with the given words, uninstall, and close the uninstaller."""
    page = wait_for(lambda: _user.FindWindowW(None, TITLE), "the uninstaller shows no window")
    found_boxes = wait_for(lambda: boxes(page), "the uninstaller does not ask")
    print(
        json.dumps({text: bool(_user.SendMessageW(box, _CHECKED, 0, 0)) for text, box in found_boxes.items()}),
        flush=True,
    )
    for text, box in found_boxes.items():
        if any(word in text for word in words):
            _user.SendMessageW(box, _SET_CHECK, 0, 0)
    _user.PostMessageW(page, _COMMAND, _NEXT, 0)
    wait_for(lambda: "Close" in text_of(_user.GetDlgItem(page, _NEXT)), "the uninstaller does not come to its end")
    wait_for(lambda: _close(page), "the uninstaller does not close")


def _close(page: int) -> bool:
    """Press Close; whether the page is gone. One press can be lost, as the button is not enabled with its text."""
    _user.PostMessageW(page, _COMMAND, _NEXT, 0)
    return not _user.IsWindow(page)


if __name__ == "__main__":
    main(sys.argv[1:])
