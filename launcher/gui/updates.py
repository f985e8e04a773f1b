"""Updates in the window: the card of the About page, and the banner that announces a newer version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtGui import QGuiApplication

from launcher import __version__
from launcher.base.errors import LauncherError
from launcher.base.text import visible_reply
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.late import update_check, update_install
from launcher.gui.models.text import format_size
from launcher.gui.translation import render, tr
from launcher.gui.widgets.blocks import Card, make_button
from launcher.gui.widgets.flow import FlowLayout
from launcher.gui.window_settings import open_window_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.base.progress import Progress
    from launcher.gui.controller import Controller
    from launcher.gui.window import Window
    from launcher.runtime import WorkHandle
    from launcher.updates.check import Artefact, NewestRelease
    from launcher.updates.install import DownloadedUpdate


_ANNOUNCED_KEY = "updates/told"
"""Key in the window settings: the version that was last announced."""


class UpdatesCard(Card):
    """Shows whether there is a newer version and its changes, and installs it."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Updates"))
        self._bridge = controller.bridge
        self._newest: NewestRelease | None = None
        self._installation: WorkHandle[None] | None = None
        self._user_acted = False
        """Whether the user has checked or installed; the automatic check must not replace its result."""
        self.status, self.notes, self.command_line = Label(), Label(), Label()
        for label in (self.status, self.notes, self.command_line):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
            label.setVisible(label is self.status)
            self.body.addWidget(label)
        self.command_line.setFont(theme.monospace())
        buttons_row = FlowLayout(gap=theme.px(theme.GAP_M))
        self.check_button = make_button(tr("Check for updates"), self.check_now)
        self.install_button = make_button("", self.install_update, primary=True)
        self.copy_button = make_button(
            tr("Copy the command"), lambda: QGuiApplication.clipboard().setText(self.command_line.text())
        )
        self.pause_button = make_button(tr("Pause"), self._pause)
        for button in (self.install_button, self.check_button, self.copy_button, self.pause_button):
            buttons_row.add(button)
            button.setVisible(button is self.check_button)
        self.body.addLayout(buttons_row)
        self.status.setText(tr("This is version {version}.", version=__version__))

    def on_shown(self) -> None:
        """Show the result of the last check, which is repeated after a week."""
        if self._installation is None:
            self._bridge.run(_check_weekly, done=self._show_weekly_result)

    def check_now(self) -> None:
        """Check for a newer version."""
        self.check_button.setEnabled(False)
        self._user_acted = True
        self._bridge.run(_check_for_update, done=self._show_result, failed=self._show_error)

    def install_update(self) -> None:
        """Download and install the newer version, or show how the user can do that."""
        newest = self._newest
        if newest is None:
            return
        self._user_acted = True
        for button in (self.check_button, self.install_button):
            button.hide()
        self.pause_button.show()
        self._installation = self._bridge.run(
            _download_and_install,
            newest,
            reported=self._show_progress,
            done=self._show_installed,
            failed=self._show_error,
            cancelled=self._show_paused,
        )

    def _show_weekly_result(self, result: tuple[NewestRelease, Artefact | LauncherError] | None) -> None:
        if result is not None and not self._user_acted:
            self._show_result(result)

    def _show_result(self, result: tuple[NewestRelease, Artefact | LauncherError]) -> None:
        if self._installation is not None:
            return
        self._newest, artefact = result
        version = self._newest.manifest.version
        self._show_idle()
        self.install_button.setText("")
        self.notes.hide()
        if not self._newest.is_newer:
            self.status.setText(tr("Version {version} is the newest.", version=__version__))
            return
        text = tr("Version {newer} is available; you have {version}.", newer=version, version=__version__)
        if isinstance(artefact, LauncherError):
            text = f"{text} {render(artefact.message)}"
        else:
            self.install_button.setText(
                tr("Download version {version} ({size})", version=version, size=format_size(artefact.size))
            )
            self.install_button.show()
        self.status.setText(text)
        notes = visible_reply(self._newest.manifest.notes).strip()
        self.notes.setText(notes)
        self.notes.setVisible(bool(notes))

    def _show_progress(self, progress: Progress) -> None:
        done, total = format_size(progress.done_bytes), format_size(progress.bytes)
        self.status.setText(progress.note or tr("{done} of {total} downloaded.", done=done, total=total))
        if progress.bytes is not None and progress.done_bytes >= progress.bytes:
            self.status.setText(tr("Downloaded. Verifying and installing ..."))

    def _show_installed(self, installed: tuple[DownloadedUpdate, bool]) -> None:
        from launcher.updates.install_method import InstallMethod

        update, is_installed = installed
        self._show_idle()
        if not is_installed:
            self.status.setText(tr("Downloaded and verified. Close this program, then run this in a terminal:"))
            self.command_line.setText(update.shell_line)
            self.command_line.show()
            self.copy_button.show()
        elif update.method is InstallMethod.SCRIPT:
            self.status.setText(
                tr("Version {version} is installed and used from the next start.", version=update.version)
            )
        else:
            self.status.setText(tr("The installer is open. It will ask you to close this window."))

    def _show_paused(self) -> None:
        self._show_idle()
        self.install_button.show()
        self.status.setText(tr("Paused. The downloaded part is kept."))

    def _show_error(self, error: LauncherError) -> None:
        self._show_idle()
        self.install_button.setVisible(bool(self.install_button.text()))
        self.status.setText(render(error.message))

    def _pause(self) -> None:
        if self._installation is not None:
            self._installation.cancel()

    def _show_idle(self) -> None:
        """Show only the button for checking."""
        self._installation = None
        self.check_button.setEnabled(True)
        for widget in (self.install_button, self.pause_button, self.copy_button, self.command_line):
            widget.hide()
        self.check_button.show()


def announce_newer(window: Window) -> WorkHandle[None]:
    """Check for a newer version weekly, and announce each once on whatever page is shown."""

    def announce(result: tuple[NewestRelease, Artefact | LauncherError] | None) -> None:
        stored = open_window_settings()
        newest = result[0] if result is not None else None
        if newest is None or not newest.is_newer or window.notice.isVisible():
            return
        version = newest.manifest.version
        if stored.value(_ANNOUNCED_KEY) == version:
            return
        stored.setValue(_ANNOUNCED_KEY, version)

        def show_updates() -> None:
            window.notice.clear()
            window.show_page("about")

        window.notice.show_message(
            tr("Version {newer} is available; you have {version}.", newer=version, version=__version__),
            "information",
            [(tr("What is new"), show_updates)],
        )

    return window.controller.bridge.run(_check_weekly, done=announce)


async def _check_weekly() -> tuple[NewestRelease, Artefact | LauncherError] | None:
    newest = await update_check.check_weekly()
    return None if newest is None else (newest, _find_artefact_or_reason(newest))


async def _check_for_update() -> tuple[NewestRelease, Artefact | LauncherError]:
    newest = await update_check.check_for_update()
    return newest, _find_artefact_or_reason(newest)


def _find_artefact_or_reason(newest: NewestRelease) -> Artefact | LauncherError:
    try:
        return update_install.find_artefact(newest)
    except update_check.NotOffered as error:
        return error


async def _download_and_install(
    newest: NewestRelease, report: Callable[[object], None]
) -> tuple[DownloadedUpdate, bool]:
    update = await update_install.download_update(newest, report)
    return update, await update_install.install_update(update)
