"""Estimates the pause that a restart with other settings makes in streams that go on, by part."""

from dataclasses import dataclass
from typing import ClassVar

from launcher.app.planning.preview import Preview
from launcher.base.codec import JsonView
from launcher.engine.builds.slot_files import SlotFiles
from launcher.gateway.exchange import HandoverOutlook
from launcher.models.memory import effective_value

_CHECKPOINT_TOKENS = 8_192
"""Tokens between two checkpoints of a long prompt (llama.cpp b11669)."""
_USUAL_SLOT_SPEED = 5e8
"""Bytes/s of slots that are saved, checked and restored, until that was measured here: that of a plain SSD."""
_DROPS_SLOTS = frozenset({"kv", "extra"})
"""Settings with which the new engine is not offered the old one's slots."""


@dataclass(frozen=True, slots=True)
class PauseEstimate:
    """A pause in seconds: loading the model, saving and restoring slots, and reading tokens again.

    None is unknown. `reads_prompts` is True if slots cannot be restored: `tokens_read` then counts prompts and replies,
    else at most replies.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView("seconds:1 load_s:1 slots_s:1 reading_s:1 tokens_read reads_prompts")
    load_s: float | None
    slots_s: float | None
    reading_s: float | None
    tokens_read: int
    reads_prompts: bool

    @property
    def seconds(self) -> float | None:
        """The whole pause, as far as it is known; None if not even the time to load is."""
        return None if self.load_s is None else self.load_s + (self.slots_s or 0.0) + (self.reading_s or 0.0)


def estimate_pause(preview: Preview, outlook: HandoverOutlook) -> PauseEstimate:
    """Return the pause of the running streams that go on with the settings of a preview."""
    basis = preview.basis
    tokens = outlook.prompt_tokens + outlook.reply_tokens
    is_recurrent = basis.geometry is None or basis.geometry.recurrent_layers > 0
    keeps_checkpoints = basis.slot_files is not SlotFiles.NO_CHECKPOINTS and _checkpoints(preview) > 0
    reads_prompts = not _restores_slots(preview, tokens) or (is_recurrent and not keeps_checkpoints)
    tokens_read = tokens if reads_prompts else outlook.reply_tokens if is_recurrent else 0
    reading_s = None if outlook.reading_speed is None else tokens_read / outlook.reading_speed
    if not tokens_read:
        reading_s = 0.0
    return PauseEstimate(preview.restart_s, _estimate_slots_s(preview, outlook), reading_s, tokens_read, reads_prompts)


def _checkpoints(preview: Preview) -> int:
    return effective_value("ctx_checkpoints", preview.plan_settings.ctx_checkpoints)


def _restores_slots(preview: Preview, tokens: int) -> bool:
    """Return whether the new engine can restore the old one's slots."""
    old, new = preview.basis.plan_settings, preview.plan_settings
    changed = {change.name for change in preview.changes}
    shares = old.kv_unified and new.kv_unified
    return not (
        preview.basis.slot_files is SlotFiles.NONE
        or changed & _DROPS_SLOTS
        or ("slots" in changed and not shares)
        or tokens > new.slot_context
    )


def _estimate_slots_s(preview: Preview, outlook: HandoverOutlook) -> float | None:
    """Return the seconds for saving and restoring slots by their size; None without a memory formula."""
    if preview.basis.slot_files is SlotFiles.NONE:
        return 0.0
    estimate, tokens = preview.estimate, outlook.prompt_tokens + outlook.reply_tokens
    if estimate is None:
        return None
    checkpoints = min(_checkpoints(preview), 1 + tokens // _CHECKPOINT_TOKENS)
    size = estimate.parts.kv * tokens / preview.plan_settings.context + estimate.host.checkpoint * (1 + checkpoints)
    return size / (outlook.slot_speed or _USUAL_SLOT_SPEED)
