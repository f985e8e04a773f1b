"""What a change of settings costs and does, in sentences."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.base.words import mark
from launcher.engine.settings import Value
from launcher.models.limits import beyond_training
from launcher.models.memory import Setting

_MINUS = "\N{MINUS SIGN}"
_MORE_OR_LESS = {
    "ctx": (mark("{cost} for {step:,} more tokens of context"), mark("{cost} for {step:,} fewer tokens of context")),
    "ubatch": (mark("{cost} when {new:,} tokens of a prompt are computed at once"),) * 2,
    "slots": (mark("{cost} for {new} requests at a time"), mark("{cost} for {new} requests at a time")),
    "n_cpu_moe": (mark("{cost} with the experts of {new} layers in host memory"),) * 2,
}


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence with its values apart, so that a face can say it in another language."""

    text: str
    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text.format(**self.values)


def signed_mib(mib: int | None) -> str:
    """Return a difference of memory, such as "+63 MiB"; an en dash where it is unknown."""
    if mib is None:
        return "\N{EN DASH} MiB"
    return f"{_MINUS if mib < 0 else '+'}{abs(mib):,} MiB"


def consequence(name: str, old: Value, new: Value, mib: int | None) -> Told:
    """Say in one sentence what changing the setting `name` alone costs: `mib`, None where that is unknown."""
    if name == "extra":
        return Told(mark("memory not counted for your own arguments"))
    if name == "threads":
        if new is None:
            return Told(mark("as many processor threads as the engine thinks right"))
        return Told(mark("{new} processor threads, no other memory"), {"new": new})
    values = {"cost": signed_mib(mib), "new": new}
    if name == "kv" or not (isinstance(old, int) and isinstance(new, int)):
        return Told(mark("{cost} with a KV cache of {new}"), values)
    step = new - old
    text = _draft(old, new) if name == "draft" else _MORE_OR_LESS[name][step < 0]
    if name == "slots" and new == 1:
        text = mark("{cost} for one request at a time")
    if name == "n_cpu_moe" and new < 2:
        text = (
            mark("{cost} with the experts of one layer in host memory")
            if new
            else mark("{cost} with no experts in host memory")
        )
    return Told(text, values | {"step": abs(step)})


def _draft(old: int, new: int) -> str:
    if not old:
        return mark("{cost} for MTP with drafts of {new}")
    if not new:
        return mark("{cost} without MTP")
    if abs(new - old) == 1:
        return mark("{cost} for one more draft") if new > old else mark("{cost} for one draft fewer")
    return mark("{cost} for {step} more drafts") if new > old else mark("{cost} for {step} drafts fewer")


def warnings_on(setting: Setting, trained_context: int | None, *, uncounted: bool) -> tuple[Told, ...]:
    """Return what to know of a setting beside its memory; `uncounted` when there are arguments that nobody counts."""
    told = []
    if sentence := beyond_training(trained_context, setting.context):
        told.append(Told("{sentence}", {"sentence": sentence}))
    if setting.slots > 1:
        values = {"slots": setting.slots, "each": setting.context // setting.slots}
        told.append(Told(mark("Each of the {slots} slots has {each:,} tokens of context."), values))
    if uncounted:
        told.append(Told(mark("Your own arguments are not counted: the server may take more or less.")))
    return tuple(told)
