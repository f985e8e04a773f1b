"""Sharing with the network: deliberate, at real addresses, private again when the server stops."""

import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

import psutil
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from launcher.app import settings_file
from launcher.app.serving.session_host import SessionHost
from launcher.app.serving.sharing import shared_urls
from launcher.app.settings_declared import APPLY
from launcher.engine.server.state import ServerState
from launcher.gateway.certificate import certificate_path, read_fingerprint
from launcher.gui.labels import Label
from launcher.gui.settings.page import SettingsPage
from launcher.gui.settings.sharing import SharingCard
from launcher.gui.window import Window
from launcher.machine.addresses import list_lan_addresses

FIRST_PAGE = "about"
Wait = Callable[..., None]
_BOX = QPoint(10, 14)
"""A point within a switch, on its box."""


def open_card(window: Window, qtbot: QtBot) -> SharingCard:
    window.show_page("settings")
    page: SettingsPage = window.page("settings")
    qtbot.waitUntil(lambda: bool(page.path.full_text))
    page.show_setting(APPLY)
    return page.sharing


@pytest.fixture
def card(demo: Window, qtbot: QtBot) -> SharingCard:
    return open_card(demo, qtbot)


def list_listening_addresses(window: Window) -> set[str]:
    """The addresses at which the gateway listens, in the server process; the engine's own is always private."""
    session = window.controller.session
    assert session is not None
    port = session.supervisor.endpoint.port
    found = psutil.Process(session.process.pid).net_connections(kind="tcp")
    return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port}


def seen_text(card: SharingCard) -> str:
    """Return all visible texts of the card."""
    return " ".join(each.text() for each in card.findChildren(Label) if each.isVisible())


def press_share(card: SharingCard, qtbot: QtBot, *, encrypted: bool = True) -> None:
    qtbot.mouseClick(card.switch, Qt.MouseButton.LeftButton, pos=_BOX)
    assert card.share_button.isVisible()
    if not encrypted:
        qtbot.mouseClick(card.plain_choice, Qt.MouseButton.LeftButton, pos=_BOX)
    qtbot.mouseClick(card.share_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: bool(card.addresses.text()) and card.switch.isEnabled())


@pytest.mark.thorough
def test_sharing_asks_first_and_changes_nothing_before(card: SharingCard, demo: Window, qtbot: QtBot) -> None:
    launch = demo.controller.launch
    assert not card.switch.isChecked()
    qtbot.mouseClick(card.switch, Qt.MouseButton.LeftButton, pos=_BOX)
    assert "encrypted with a certificate" in seen_text(card)
    qtbot.mouseClick(card.plain_choice, Qt.MouseButton.LeftButton, pos=_BOX)
    assert "not encrypted" in seen_text(card)
    qtbot.mouseClick(card.cancel_button, Qt.MouseButton.LeftButton)
    assert not card.switch.isChecked()
    assert not card.share_button.isVisible()
    assert demo.controller.launch is launch
    assert list_listening_addresses(demo) == {"127.0.0.1"}


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_shared_server_is_reached_at_the_shown_addresses_with_the_copied_key(
    card: SharingCard, demo: Window, qtbot: QtBot, encrypted: bool
) -> None:
    before, session = demo.controller.view.address, demo.controller.session
    assert session is not None
    engine = session.supervisor.engine_pid
    press_share(card, qtbot, encrypted=encrypted)
    assert demo.controller.view.address == before
    assert list_listening_addresses(demo) == {"0.0.0.0"}
    assert session.supervisor.engine_pid == engine  # the same engine: only the address has changed
    assert "shared with the network" in demo.controller.view.settings
    urls = shared_urls(int(before.rpartition(":")[2]), encrypted=encrypted)
    assert card.addresses.text() == ("\n".join(f"{url}/v1" for url in urls) or card.addresses.text())
    assert card.fingerprint.isVisible() == card.show_certificate.isVisible() == encrypted
    assert card.fingerprint.text() == (read_fingerprint() if encrypted else "")
    qtbot.mouseClick(card.copy_key, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "key copied" in seen_text(card))
    key = QGuiApplication.clipboard().text()
    assert key
    assert key not in card.addresses.text()
    trusted = ssl.create_default_context(cafile=str(certificate_path()) if encrypted else None)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    for url in (f"http://{before}", *urls):
        request = urllib.request.Request(f"{url}/v1/models")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            opener.open(request, timeout=120)
        request.add_header("Authorization", f"Bearer {key}")
        assert opener.open(request, timeout=120).status == 200
    if urls:
        qtbot.mouseClick(card.copy_url, Qt.MouseButton.LeftButton)
        assert QGuiApplication.clipboard().text() == f"{urls[0]}/v1"
        if encrypted:
            with pytest.raises(OSError, match=r"reset|closed|urlopen|ended"):
                opener.open(urls[0].replace("https", "http") + "/health", timeout=120)


def test_our_replies_go_on_and_connections_of_others_end_with_sharing(
    card: SharingCard, demo: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.controller.set_sampling_value("ignore_eos", True)
    demo.controller.set_sampling_value("max_tokens", 100_000)
    demo.controller.request_reply([{"role": "user", "content": "Go on for ever."}])
    qtbot.waitUntil(lambda: demo.controller.view.replying)
    press_share(card, qtbot, encrypted=False)
    assert demo.controller.view.replying
    address = next(iter(list_lan_addresses()), None)
    port = int(demo.controller.view.address.rpartition(":")[2])
    other = socket.create_connection((address, port), timeout=60) if address else None
    qtbot.mouseClick(card.switch, Qt.MouseButton.LeftButton, pos=_BOX)
    qtbot.waitUntil(lambda: card.switch.isEnabled() and not card.switch.isChecked())
    assert demo.controller.view.replying
    if other is not None:
        with other:
            assert other.recv(1) == b""  # the other computer's connection was closed
    demo.controller.stop_reply()


@pytest.mark.thorough
def test_a_server_is_private_again_after_sharing_is_switched_off(card: SharingCard, demo: Window, qtbot: QtBot) -> None:
    press_share(card, qtbot)
    qtbot.mouseClick(card.switch, Qt.MouseButton.LeftButton, pos=_BOX)
    qtbot.waitUntil(lambda: card.switch.isEnabled() and not card.switch.isChecked())
    assert list_listening_addresses(demo) == {"127.0.0.1"}
    assert not card.addresses.isVisible()
    assert settings_file.read_settings_file().values == {}


def test_each_start_is_private(card: SharingCard, demo: Window, wait_for: Wait, qtbot: QtBot) -> None:
    press_share(card, qtbot)
    demo.controller.stop()
    wait_for(ServerState.STOPPED)
    qtbot.waitUntil(lambda: not card.switch.isEnabled() and not card.switch.isChecked())
    assert "load a model first" in seen_text(card)
    demo.controller.start()
    wait_for(ServerState.READY)
    qtbot.waitUntil(card.switch.isEnabled)
    assert not card.switch.isChecked()
    assert list_listening_addresses(demo) == {"127.0.0.1"}


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this computer on Linux alone")
def test_a_server_that_cannot_be_shared_goes_on_privately(window: Window, wait_for: Wait, qtbot: QtBot) -> None:
    """Another program has the port on another address, which Linux allows beside a server on 127.0.0.1."""
    hosted: list[SessionHost] = []

    async def host_session() -> None:
        """Hold the window's session in this process, where the test reaches it."""
        host = SessionHost(None)
        await host.listen()
        hosted.append(host)
        try:
            await host.wait_until_unused()
        finally:
            await host.close()

    window.controller.bridge.run(host_session)
    qtbot.waitUntil(lambda: bool(hosted))
    window.start_demo()
    wait_for(ServerState.READY)
    card = open_card(window, qtbot)
    port = int(window.controller.view.address.rpartition(":")[2])
    hosted[0].session._may_change_port, hosted[0].session._port = False, port
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))
        other.listen()
        qtbot.mouseClick(card.switch, Qt.MouseButton.LeftButton, pos=_BOX)
        qtbot.mouseClick(card.share_button, Qt.MouseButton.LeftButton)
        qtbot.waitUntil(window.page("settings").banner.isVisible)
        assert f"{port}" in window.page("settings").banner.text.text()
        assert list_listening_addresses(window) == {
            "127.0.0.1",
            "127.0.0.2",
        }  # 127.0.0.2 is this test's own listener, in the same process
        assert not card.switch.isChecked()
