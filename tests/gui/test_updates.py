"""Newer versions in the window: announced once, shown with their notes, downloaded, paused, installed."""

import threading
from pathlib import Path

import pytest
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from launcher import __version__
from launcher.gui.updates import UpdatesCard, announce_newer
from launcher.gui.window import Window
from launcher.updates import check
from launcher.updates import install as installing
from launcher.updates.check import RELEASES_VARIABLE
from launcher.updates.install import find_artefact
from launcher.updates.install_method import InstallMethod
from tests.updates.published import CONTENT, Release

FIRST_PAGE = "keys"
NEWER = f"Version 7.0.0 is available; you have {__version__}."


@pytest.fixture
def card(window: Window, release: Release) -> UpdatesCard:
    """The update card of the About page before it was shown."""
    window.show_page("about")
    card: UpdatesCard = window.page("about").updates
    return card


def list_texts(card: UpdatesCard) -> list[str]:
    """Return the visible buttons and texts."""
    widgets = (
        card.status,
        card.notes,
        card.command_line,
        card.install_button,
        card.check_button,
        card.copy_button,
        card.pause_button,
    )
    return [each.text() for each in widgets if each.isVisible()]


def wait_for_status(qtbot: QtBot, card: UpdatesCard, text: str) -> None:
    qtbot.waitUntil(lambda: text in card.status.text())


def test_a_newer_version_is_shown_with_its_notes_and_installed(
    card: UpdatesCard, by_script: Path, qtbot: QtBot, home: Path
) -> None:
    wait_for_status(qtbot, card, NEWER)  # the page checks when it is shown, because the last check was a week ago
    assert list_texts(card) == [NEWER, "Faster.\nQuieter.", "Download version 7.0.0 (500 kB)", "Check for updates"]
    card.install_button.click()
    wait_for_status(qtbot, card, "Version 7.0.0 is installed and used from the next start.")
    assert (home / "cache" / "updates" / "7.0.0" / "ran").exists()
    assert list_texts(card)[2:] == ["Check for updates"]
    assert card._newest is not None
    card._show_weekly_result((card._newest, find_artefact(card._newest)))  # the page is shown once more
    assert "is installed" in card.status.text()


def test_a_download_is_paused_and_resumed(
    card: UpdatesCard, release: Release, by_script: Path, qtbot: QtBot, home: Path
) -> None:
    wait_for_status(qtbot, card, NEWER)
    release.use_address("slow=100000")
    card.check_button.click()
    qtbot.waitUntil(lambda: card.check_button.isEnabled())
    card.install_button.click()
    qtbot.waitUntil(lambda: " of 500 kB downloaded." in card.status.text())
    assert list_texts(card)[2:] == ["Pause"]
    card.pause_button.click()
    wait_for_status(qtbot, card, "Paused. The downloaded part is kept")
    release.use_address()
    card.check_button.click()
    wait_for_status(qtbot, card, NEWER)
    card.install_button.click()
    wait_for_status(qtbot, card, "Version 7.0.0 is installed and used")
    assert (home / "cache" / "updates" / "7.0.0" / "install.sh").read_bytes() == CONTENT


def test_the_debian_package_is_left_to_the_user_to_install(
    card: UpdatesCard, release: Release, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(installing, "find_install_method", lambda: InstallMethod.DEB)
    release.publish(name="mtp-launcher_7.0.0_amd64.deb")
    card.check_button.click()
    qtbot.waitUntil(card.install_button.isVisible)
    card.install_button.click()
    wait_for_status(qtbot, card, "Close this program, then run this in a terminal:")
    path = home / "cache" / "updates" / "7.0.0" / "mtp-launcher_7.0.0_amd64.deb"
    assert card.command_line.text() == f"sudo apt install {path}"
    card.copy_button.click()
    assert QGuiApplication.clipboard().text() == card.command_line.text()


def test_an_error_is_reported_and_can_be_retried(
    card: UpdatesCard, release: Release, by_script: Path, qtbot: QtBot
) -> None:
    wait_for_status(qtbot, card, NEWER)
    release.publish(content=b"echo 'Error: The disk is full.'; echo 'Make room.'; exit 1\n")
    card.check_button.click()
    wait_for_status(qtbot, card, NEWER)
    qtbot.waitUntil(lambda: "bytes" in card.install_button.text())
    card.install_button.click()
    wait_for_status(qtbot, card, "The disk is full. Make room.")
    assert card.install_button.isVisible()
    release.use_address("404")
    card.check_button.click()
    wait_for_status(qtbot, card, "has no manifest.json")


def test_a_missing_update_is_reported(card: UpdatesCard, release: Release, qtbot: QtBot, home: Path) -> None:
    wait_for_status(qtbot, card, "In a checkout: `git pull`")
    assert not card.install_button.isVisible()
    (home / "state" / "updates.json").unlink()  # the kept check would refuse a release older than 7.0.0
    release.publish(__version__)
    card.check_button.click()
    wait_for_status(qtbot, card, f"Version {__version__} is the newest.")
    assert not card.install_button.isVisible()


def test_an_older_version_than_known_is_refused_and_the_known_one_stays_offered(
    card: UpdatesCard, release: Release, by_script: Path, qtbot: QtBot
) -> None:
    wait_for_status(qtbot, card, NEWER)
    release.publish(__version__)
    card.check_button.click()
    wait_for_status(qtbot, card, f"offers version {__version__}, though version 7.0.0 is known from there.")
    assert "Download version 7.0.0 (500 kB)" in list_texts(card)
    release.use_address("404")
    card.check_button.click()
    wait_for_status(qtbot, card, "has no manifest.json")


def test_a_missing_release_address_is_reported_on_request(
    window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "RELEASES", "")
    monkeypatch.delenv(RELEASES_VARIABLE)
    window.show_page("about")
    card: UpdatesCard = window.page("about").updates
    assert card.status.text() == f"This is version {__version__}."
    card.check_button.click()
    wait_for_status(qtbot, card, "This build has no release address")


def test_each_newer_version_is_announced_once(window: Window, release: Release, qtbot: QtBot) -> None:
    def check() -> None:
        received: list[bool] = []
        ended = threading.Event()
        announce_newer(window).when_done(lambda _error: ended.set())
        qtbot.waitUntil(ended.is_set)
        window.controller.bridge.run(_do_nothing, done=received.append)  # reports come in order, so this one comes last
        qtbot.waitUntil(lambda: bool(received))

    check()
    assert window.notice.text.text() == NEWER
    window.notice.buttons[0].click()
    assert window.page_name == "about"
    assert not window.notice.isVisible()
    wait_for_status(qtbot, window.page("about").updates, NEWER)
    check()
    assert not window.notice.isVisible()


async def _do_nothing() -> bool:
    return True
