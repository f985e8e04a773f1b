"""Read the open window through the AT-SPI bus, as a screen reader does; fail if a control has no name.

Needs Debian's python3 with python3-pyatspi. Prints one line per role with its count, then the controls without a name.
"""

import collections
import contextlib
import sys
import time

import pyatspi
from gi.repository import GLib

PAGES = ("Start", "Cockpit", "Tune", "Models", "Agents", "Logs", "Settings")
_NAMED = {
    pyatspi.ROLE_PUSH_BUTTON,
    pyatspi.ROLE_TOGGLE_BUTTON,
    pyatspi.ROLE_CHECK_BOX,
    pyatspi.ROLE_RADIO_BUTTON,
    pyatspi.ROLE_COMBO_BOX,
    pyatspi.ROLE_SLIDER,
    pyatspi.ROLE_SPIN_BUTTON,
    pyatspi.ROLE_ENTRY,
    pyatspi.ROLE_TABLE,
    pyatspi.ROLE_TREE,
    pyatspi.ROLE_LIST,
}
_PRESSED = ("push button", "toggle button", "check box", "radio button")
_LIMIT_S = 60


def main() -> int:
    """Visit all pages through the actions of their buttons. Return 1 if a control has no name or a page is missing."""
    window = _wait_for(_find_window, "the window on the bus")
    roles = collections.Counter()
    nameless = []
    for page in PAGES:
        _wait_for(lambda page=page: _press(window, page), f"the button of {page}")
        _wait_for(lambda page=page: _has_title(window, page), f"the page {page}")
        for role, name, path in _wait_for(lambda: _read(window), f"what is on {page}"):
            roles[path.rpartition(" > ")[2]] += 1
            if role in _NAMED and not name.strip() and "combo box >" not in path:
                nameless.append(f"{page}: {path}")
    for name, count in sorted(roles.items()):
        print(f"{count:5} {name}")
    print(f"{len(nameless)} controls without a name")
    for line in nameless:
        print(f"  {line}")
    return 1 if nameless else 0


def _find_window():
    for application in pyatspi.Registry.getDesktop(0):
        if application is not None and any(each is not None and each.name == "MTP Launcher" for each in application):
            return application
    return None


def _showing(root):
    """Yield each visible object, with the roles from the root down to it."""
    waiting = [(root, root.getRoleName())]
    while waiting:
        node, path = waiting.pop()
        with contextlib.suppress(GLib.GError):  # an object may be gone while it is read
            for child in node:
                if child is None:
                    continue
                if child.getState().contains(pyatspi.STATE_SHOWING) or child.getRole() == pyatspi.ROLE_FRAME:
                    where = f"{path} > {child.getRoleName()}"
                    waiting.append((child, where))
                    yield child, where


def _press(root, name):
    """Press the button with a name; return whether it is there."""
    found = (each for each, path in _showing(root) if each.name == name and path.rpartition(" > ")[2] in _PRESSED)
    button = next(found, None)
    return button is not None and button.queryAction().doAction(0)


def _read(root):
    return [(each.getRole(), each.name, path) for each, path in _showing(root)]


def _has_title(root, name):
    return any(each.name == name and each.getRole() == pyatspi.ROLE_LABEL for each, _ in _showing(root))


def _wait_for(find, what):
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        with contextlib.suppress(GLib.GError):  # an object may be gone while it is read
            if found := find():
                return found
        time.sleep(0.2)
    sys.exit(f"{what} did not come in {_LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
