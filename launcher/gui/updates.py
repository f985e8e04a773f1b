"""Newer versions in the window: the card of the About page, and the line that tells of one when the window opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QSettings
from PySide6.QtGui import QGuiApplication

from launcher import __version__
from launcher.base.errors import LauncherError
from launcher.base.paths import state_dir
from launcher.base.text import prose
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.models.words import size
from launcher.gui.sentences import say_error
from launcher.gui.widgets.blocks import Card, make_button
from launcher.gui.widgets.flow import Flow
from launcher.gui.words import tr

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.fetch.transfer import Progress
    from launcher.gui.bridge import Tell
    from launcher.gui.controller import Controller
    from launcher.gui.window import Window
    from launcher.runtime import Handle
    from launcher.updates.check import Newest
    from launcher.updates.install import Received
    from launcher.updates.manifest import Artefact


_TOLD = "updates/told"
"""In the window's own file: the version that was told of."""


class UpdatesCard(Card):
    """Says whether there is a newer version and what is new in it, and gets it."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Updates"))
        self._bridge = controller.bridge
        self._newest: Newest | None = None
        self._getting: Handle[None] | None = None
        self._asked = False
        """Whether the user has asked, or got it: what is known by itself is not shown over that."""
        self.said, self.notes, self.line = Label(), Label(), Label()
        for label in (self.said, self.notes, self.line):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
            label.setVisible(label is self.said)
            self.body.addWidget(label)
        self.line.setFont(theme.monospace())
        ways = Flow(gap=theme.px(theme.GAP_M))
        self.look = make_button(tr("Look for a newer version"), self.ask)
        self.get = make_button("", self.install, primary=True)
        self.copy = make_button(tr("Copy the command"), lambda: QGuiApplication.clipboard().setText(self.line.text()))
        self.cancel = make_button(tr("Pause"), self._cancel)
        for button in (self.get, self.look, self.copy, self.cancel):
            ways.add(button)
            button.setVisible(button is self.look)
        self.body.addLayout(ways)
        self._say(tr("This is version {version}.", version=__version__))

    def shown(self) -> None:
        """Show what is known, asked for when a week has gone by."""
        if self._getting is None:
            self._bridge.run(_known, done=self._show_known)

    def ask(self) -> None:
        """Ask whether there is a newer version."""
        self.look.setEnabled(False)
        self._asked = True
        self._bridge.run(_asked, done=self._show, failed=self._fail)

    def install(self) -> None:
        """Get the newer version, and install it, or say how."""
        newest = self._newest
        if newest is None:
            return
        self._asked = True
        for button in (self.look, self.get):
            button.hide()
        self.cancel.show()
        self._getting = self._bridge.run(
            lambda tell: _install(newest, tell),
            told=self._show_progress,
            done=self._installed,
            failed=self._fail,
            cancelled=self._paused,
        )

    def _say(self, text: str) -> None:
        self.said.setText(text)

    def _show_known(self, found: tuple[Newest, Artefact | LauncherError] | None) -> None:
        if found is not None and not self._asked:
            self._show(found)

    def _show(self, found: tuple[Newest, Artefact | LauncherError]) -> None:
        if self._getting is not None:
            return
        self._newest, offer = found
        version = self._newest.manifest.version
        self._rest()
        self.get.setText("")
        self.notes.hide()
        if not self._newest.is_newer:
            self._say(tr("This is version {version}. There is no newer one.", version=__version__))
            return
        said = tr("Version {newer} is out; this is {version}.", newer=version, version=__version__)
        if isinstance(offer, LauncherError):
            said = f"{said} {say_error(offer)}"
        else:
            self.get.setText(tr("Get version {version} ({size})", version=version, size=size(offer.size)))
            self.get.show()
        self._say(said)
        notes = prose(self._newest.manifest.notes).strip()
        self.notes.setText(notes)
        self.notes.setVisible(bool(notes))

    def _show_progress(self, progress: Progress) -> None:
        done, total = size(progress.done_bytes), size(progress.bytes)
        self._say(progress.note or tr("{done} of {total} are here.", done=done, total=total))
        if progress.bytes is not None and progress.done_bytes >= progress.bytes:
            self._say(tr("All is here; it is being verified and installed."))

    def _installed(self, got: tuple[Received, bool]) -> None:
        from launcher.updates.way import Way

        received, done = got
        self._rest()
        if not done:
            self._say(tr("It is here, and verified. Close this program, then run this in a terminal:"))
            self.line.setText(received.line)
            self.line.show()
            self.copy.show()
        elif received.way is Way.SCRIPT:
            said = tr(
                "Version {version} is installed. It is the one that starts from now on.", version=received.version
            )
            self._say(said)
        else:
            self._say(tr("Its installer is open. It asks this window to close."))

    def _paused(self) -> None:
        self._rest()
        self.get.show()
        self._say(tr("Paused. What has arrived is kept, and the download goes on from there."))

    def _fail(self, error: LauncherError) -> None:
        self._rest()
        self.get.setVisible(bool(self.get.text()))
        self._say(say_error(error))

    def _cancel(self) -> None:
        if self._getting is not None:
            self._getting.cancel()

    def _rest(self) -> None:
        """Be as it is while nothing is on its way."""
        self._getting = None
        self.look.setEnabled(True)
        for widget in (self.get, self.cancel, self.copy, self.line):
            widget.hide()
        self.look.show()


def tell_of_newer(window: Window) -> Handle[None]:
    """Look for a newer version when a week has gone by, and tell of it on whatever page, once for each version."""

    def tell(found: tuple[Newest, Artefact | LauncherError] | None) -> None:
        kept = QSettings(str(state_dir() / "window.ini"), QSettings.Format.IniFormat)
        newest = found[0] if found is not None else None
        if newest is None or not newest.is_newer or window.notice.isVisible():
            return
        version = newest.manifest.version
        if kept.value(_TOLD) == version:
            return
        kept.setValue(_TOLD, version)

        def show() -> None:
            window.notice.clear()
            window.show_page("about")

        window.notice.tell(
            tr("Version {newer} is out; this is {version}.", newer=version, version=__version__),
            "information",
            [(tr("What is new"), show)],
        )

    return window.controller.bridge.run(_known, done=tell)


async def _known(_tell: Tell) -> tuple[Newest, Artefact | LauncherError] | None:
    from launcher.updates.check import weekly

    newest = await weekly()
    return None if newest is None else (newest, _offer(newest))


async def _asked(_tell: Tell) -> tuple[Newest, Artefact | LauncherError]:
    from launcher.updates.check import check

    newest = await check()
    return newest, _offer(newest)


def _offer(newest: Newest) -> Artefact | LauncherError:
    from launcher.updates.errors import NotOffered
    from launcher.updates.install import offered

    try:
        return offered(newest)
    except NotOffered as error:
        return error


async def _install(newest: Newest, tell: Callable[[object], None]) -> tuple[Received, bool]:
    from launcher.updates.install import install, receive

    received = await receive(newest, tell)
    return received, await install(received)
