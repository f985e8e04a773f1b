"""Machine presets as servers and plans use them: whether one matches what is here now, and what has changed since."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from launcher.base.errors import HistoryUnusable, LauncherError
from launcher.engine.build import BUILT_IN, Build, find_on_path, probe
from launcher.engine.installed import current
from launcher.engine.launch import ServeOptions, check_model, choose_build
from launcher.machine.machine import Machine
from launcher.models.catalogue import Catalogue
from launcher.models.gguf import read_model
from launcher.models.library import find
from launcher.models.plan import Plan, Status, Wish, make_plans
from launcher.models.situation import Situation
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, ModelFacts, clauses, model_facts
from launcher.tuning.machine_preset import MachinePreset, confirmed_by, keep_preset, preset_of, presets
from launcher.tuning.records import Value
from launcher.tuning.report import words

_V = TypeVar("_V")
_PLANNED = ("draft", "kv", "ubatch", "n_cpu_moe")
"""What a plan takes from a preset."""
_RETUNE = "measure again with `mtp-launcher tune`"


@dataclass(frozen=True, slots=True)
class Found:
    """A preset for a model that is about to be served, and what differs from where it was measured, in sentences.

    It is `used` where it was measured, or confirmed, on this machine, and GPU, processor and model are the same; with
    another driver or version of the engine it is used, too, and measuring again is suggested.
    """

    preset: MachinePreset
    changed: tuple[str, ...]
    used: bool

    @property
    def differs(self) -> str:
        """What differs, as a part of a sentence."""
        return clauses(self.changed)

    @property
    def line(self) -> str:
        """What to tell the user."""
        if not self.preset.verified:
            return (
                f"an imported preset is not used, as nothing here confirms it yet: {words(self.preset.settings)}; "
                "`mtp-launcher tune` measures, or `mtp-launcher bench` with its settings and without"
            )
        if not self.used:
            return f"a preset is not used, as {self.differs}; {_RETUNE}"
        since = f"; since then {self.differs}: {_RETUNE}" if self.changed else ""
        return f"{self.preset.words}{since}; --no-preset leaves it out"


async def find_preset(options: ServeOptions, *, wake: bool = True) -> Found | None:
    """Return the preset for the model of these options, None where there is none.

    Without `wake` no engine is asked for its devices, which would wake a GPU that sleeps.

    One that was imported is looked up in the history, and kept as verified when measurements of this machine confirm
    it. What cannot be looked at (a model that is broken, an engine that does not answer) is for the start to tell.
    """
    if not presets():
        return None
    with suppress(LauncherError, OSError):
        header = await asyncio.to_thread(check_model, replace(options, draft=0))
        facts = await asyncio.to_thread(model_facts, header)
        preset = await asyncio.to_thread(preset_of, facts)
        if preset is None:
            return None
        build = await (choose_build(options) if wake else _engine_now(preset))
        here = await asyncio.to_thread(Environment.here, facts, build.name, build.version)
        preset = await asyncio.to_thread(_settled, preset, here)
        return judged(preset, here)
    return None


def judged(preset: MachinePreset, here: Environment) -> Found:
    """Return whether a preset is used on this machine as it is now."""
    there = preset.evidence.environment
    engines = {there.engine, here.engine}
    same_kind = BUILT_IN not in engines or len(engines) == 1
    usable = preset.verified and not there.unlike(here) and same_kind
    return Found(preset, there.differences(here), usable)


def settings_used(found: Found | None, asked: Mapping[str, object], kept: Mapping[str, object]) -> dict[str, Value]:
    """Return the settings of a preset that a start takes: those that the user neither asks for nor chose otherwise.

    `kept` are the choices of the last start; a choice that is the preset's own counts as the preset's.
    """
    if found is None or not found.used:
        return {}
    other = kept.keys() - _its_own(found, kept)
    return {name: value for name, value in found.preset.settings.items() if name not in asked and name not in other}


def settings_kept(found: Found | None, asked: Mapping[str, object], kept: Mapping[str, _V]) -> dict[str, _V]:
    """Return the choices of the last start that a start takes: not those asked for now, nor those of the preset."""
    own = _its_own(found, kept)
    return {name: value for name, value in kept.items() if name not in asked and name not in own}


def _its_own(found: Found | None, kept: Mapping[str, object]) -> set[str]:
    """Return the names of choices that are a preset's: they were kept when the tune's result was applied."""
    if found is None or not found.preset.verified:
        return set()
    mine = found.preset.settings
    return {name for name, value in kept.items() if name in mine and mine[name] == value}


async def with_presets(
    plans: Sequence[Plan], catalogue: Catalogue, situation: Situation, wish: Wish
) -> tuple[Plan, ...]:
    """Return the plans, those of models that have a preset here by its settings; what the user fixed stays.

    The context is the plan's own, and a preset that does not fit with it is left out.
    """
    if situation.described or not presets():
        return tuple(plans)
    made, seen = [], set()
    for plan in plans:
        name = (plan.entry.id, plan.file.quant)
        made.append(plan if name in seen else await _with_preset(plan, catalogue, situation, wish))
        seen.add(name)
    return tuple(made)


async def _with_preset(plan: Plan, catalogue: Catalogue, situation: Situation, wish: Wish) -> Plan:
    local = await asyncio.to_thread(find, plan.entry, plan.file.quant)
    found = await find_preset(ServeOptions(local.path), wake=False) if local else None
    if found is None:
        return plan
    told = f"Preset of this machine: {found.line}."
    if found.used:
        fixed = {name: found.preset.settings.get(name) for name in _PLANNED if getattr(wish, name) is None}
        wished = {name: value for name, value in fixed.items() if value is not None}
        same = replace(wish, model=plan.entry.id, quant=plan.file.quant, **wished)  # type: ignore[arg-type]
        new = next(iter(make_plans(catalogue, situation, same)), None)
        if new is None or new.status is Status.TOO_BIG:
            return plan
        plan = new
    return replace(plan, reasons=(told, *plan.reasons))


async def outdated(machine: Machine) -> tuple[Found, ...]:
    """Return the presets of this machine that were measured with other things than are here now."""
    found = []
    for preset in await asyncio.to_thread(presets):
        if not preset.verified:
            continue
        with suppress(LauncherError, OSError):
            build = await _engine_now(preset)
            facts = await asyncio.to_thread(_facts_now, preset)
            here = await asyncio.to_thread(Environment.here, facts, build.name, build.version, machine)
            told = judged(preset, here)
            if told.changed:
                found.append(told)
    return tuple(found)


def _settled(preset: MachinePreset, here: Environment) -> MachinePreset:
    """Return a preset that was imported as verified, and keep it so, when this machine has confirmed it."""
    if preset.verified:
        return preset
    with suppress(HistoryUnusable, OSError):
        with History() as history:
            speaking = confirmed_by(preset, history, here)
        if speaking:
            evidence = preset.evidence.model_copy(update={"environment": here})
            preset = preset.model_copy(update={"verified_by": speaking, "evidence": evidence})
            keep_preset(preset)
    return preset


async def _engine_now(preset: MachinePreset) -> Build:
    """Return the build that would be taken today in place of the one that a preset was measured with.

    No devices are listed for it: that would wake a GPU.
    """
    if preset.evidence.environment.engine == BUILT_IN:
        return await probe(None)
    chosen = current()
    program: Path | None = chosen.program if chosen is not None else find_on_path()
    return await probe(program)


def _facts_now(preset: MachinePreset) -> ModelFacts:
    if preset.path is None or not preset.path.is_file():
        return preset.model
    return model_facts(read_model(preset.path))
