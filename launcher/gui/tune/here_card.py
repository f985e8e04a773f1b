"""What this computer knows already of the model: its preset, whether that still holds, and what use says of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox

from launcher.gui.labels import Label, set_tip
from launcher.gui.sentences import say, say_error
from launcher.gui.tune.tuning import options_here
from launcher.gui.widgets import Card
from launcher.gui.widgets.blocks import make_button
from launcher.gui.words import tr
from launcher.settings_declared import ADVICE

if TYPE_CHECKING:
    from launcher.base.errors import LauncherError
    from launcher.gui.controller import Controller
    from launcher.machine_presets import Found
    from launcher.session import Session
    from launcher.tuning.advice import Advice


@dataclass(frozen=True, slots=True)
class Here:
    """What is known of the model that would be measured. `counts` is whether use is counted for advice."""

    preset: Found | None = None
    advice: Advice | None = None
    counts: bool = True


class HereCard(Card):
    """The preset with what has changed since, and a button to measure again; advice, and the switch that ends it."""

    again = Signal()
    """The user wants it measured again."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Known here"))
        self._controller = controller
        self.preset, self.changed, self.advice = Label(), Label(), Label()
        self.measure = make_button(tr("Measure again"), self.again.emit)
        self.switch = QCheckBox(tr("Advice from use"))
        set_tip(
            self.switch,
            tr(
                "Counts tokens and accepted drafts while you use a server, and says when another draft length would "
                "have been faster. Only these counts are kept, on this computer."
            ),
        )
        self.switch.clicked.connect(lambda on: controller.change_setting(ADVICE, on))
        self.head.addWidget(self.switch)
        for label in (self.preset, self.changed, self.advice):
            label.setWordWrap(True)
            self.body.addWidget(label)
        at = self.body.indexOf(self.changed) + 1
        self.body.insertWidget(at, self.measure, alignment=Qt.AlignmentFlag.AlignLeft)
        self.show_here(Here())
        controller.setting_changed.connect(lambda name, _value: self.look() if name == ADVICE else None)

    def look(self) -> None:
        """Find out what is known now."""
        session, model = self._controller.session, self._controller.named

        async def work(_tell: object) -> Here:
            return await _found(session, model)

        self._controller.bridge.run(work, done=self.show_here, failed=self._fail)

    def _fail(self, error: LauncherError) -> None:
        """Say why nothing is known."""
        self.show_here(Here())
        self.preset.setText(say_error(error))

    def show_here(self, here: Here) -> None:
        """Show what is known."""
        preset = here.preset
        self.preset.setText(_preset_words(preset) if preset else tr("There is no preset of this machine yet."))
        self.changed.setText(_changed_words(preset) if preset else "")
        self.advice.setText(_advice_words(here.advice) if here.advice else "")
        self.switch.setChecked(here.counts)
        self.measure.setVisible(bool(self.changed.text()))
        for label in (self.changed, self.advice):
            label.setVisible(bool(label.text()))


def _preset_words(found: Found) -> str:
    from launcher.gui.tune.shown import setting_words

    preset, settings = found.preset, setting_words(found.preset.settings, {})
    measured_s = preset.evidence.measured_s
    date = f"{datetime.fromtimestamp(measured_s, UTC):%Y-%m-%d}" if measured_s else tr("unknown")
    return tr(
        "Preset of this machine for {model}: {settings}. Measured: {date}.",
        model=preset.model.words,
        settings=settings,
        date=date,
    )


def _changed_words(found: Found) -> str:
    if not found.preset.verified:
        return tr("It comes from another machine, and is used once measurements here confirm it.")
    if not found.changed:
        return ""
    differs = " ".join(map(say, found.changed))
    if found.used:
        return tr("Measuring again is suggested. {differs}", differs=differs)
    return tr("It is not used, and measuring again is suggested. {differs}", differs=differs)


def _advice_words(advice: Advice) -> str:
    low, high = (f"{100 * (end - 1):.0f}" for end in (advice.ratio.low, advice.ratio.high))
    figures = {
        "tokens": advice.tokens_words,
        "draft": advice.draft,
        "percent": f"{100 * (advice.ratio.estimate - 1):.0f}",
        "low": low,
        "high": high,
    }
    if not advice.better:
        return tr(
            "Advice: over your last {tokens} tokens, no MTP would have been about {percent} % faster ({low} to"
            " {high} %, with 95 % confidence) than draft {draft}.",
            **figures,
        )
    return tr(
        "Advice: over your last {tokens} tokens, draft {better} would have been about {percent} % faster ({low} to"
        " {high} %, with 95 % confidence) than draft {draft}.",
        better=advice.better,
        **figures,
    )


async def _found(session: Session | None, model: str) -> Here:
    """Look at what runs, else at the model that was served last, else at the demo. No GPU is woken."""
    from launcher import settings
    from launcher.machine_presets import find_preset
    from launcher.use_counting import advice_for

    _, options = await options_here(session, model)
    launch = None if session is None or session.rests else session.supervisor.launch
    advice = await asyncio.to_thread(advice_for, launch) if launch is not None else None
    counts = bool(await asyncio.to_thread(settings.value, ADVICE))
    return Here(await find_preset(options, wake=False), advice, counts)
