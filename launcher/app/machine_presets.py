"""Machine presets in use: whether one matches the current environment, and what has changed since its measurement."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from launcher.base.errors import HistoryUnusable, LauncherError
from launcher.base.messages import message
from launcher.engine.builds.build import BUILT_IN, EngineBuild
from launcher.engine.builds.installed import engine_in_use
from launcher.engine.builds.probe import find_on_path, probe_engine
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch, check_model, choose_build
from launcher.machine.machine import Machine
from launcher.models.gguf import read_model
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, ModelFacts, join_clauses, model_facts
from launcher.tuning.machine_preset import (
    MachinePreset,
    confirming_sessions,
    load_presets,
    preset_for_model,
    save_preset,
)
from launcher.tuning.report import settings_line

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class PresetMatch:
    """A preset for a model that is about to be served, and the differences from where it was measured, as sentences.

    It is `used` if it was measured or confirmed on this machine, and GPU, processor and model are the same. With
    another driver or engine version it is still used, and measuring again is suggested.
    """

    preset: MachinePreset
    changed: tuple[str, ...]
    used: bool

    @property
    def differs(self) -> str:
        """The differences, as a clause of a sentence."""
        return join_clauses(self.changed)

    @property
    def line(self) -> str:
        """Message for the user."""
        if not self.preset.verified:
            return message(
                "settings imported from another computer are used only after a measurement here confirms "
                "them: {settings}; run `mtp-launcher tune`, or `mtp-launcher bench` with and without these "
                "settings",
                settings=settings_line(self.preset.settings),
            )
        if not self.used:
            return message(
                "the tuned settings are not used, because {differs}; measure again with `mtp-launcher tune`",
                differs=self.differs,
            )
        return message(
            "{settings}[; since then {differs}: measure again with `mtp-launcher tune`]; --no-preset ignores them",
            settings=self.preset.summary,
            differs=self.differs if self.changed else None,
        )


async def find_preset(options: ServeOptions, *, wake: bool = True) -> PresetMatch | None:
    """Return the preset for the model of these options. None where there is none.

    Without `wake` no engine lists its devices, which would wake a sleeping GPU. An imported preset is kept as verified
    once sessions of this machine in the history confirm it. Errors (a broken model, an engine that does not answer) are
    left for the start to report.
    """
    if not load_presets():
        return None
    with suppress(LauncherError, OSError):
        header = await asyncio.to_thread(check_model, replace(options, draft=0))
        facts = await asyncio.to_thread(model_facts, header)
        preset = await asyncio.to_thread(preset_for_model, facts)
        if preset is None:
            return None
        build = await (choose_build(options) if wake else _engine_now(preset))
        here = await asyncio.to_thread(Environment.for_model, facts, build.name, build.version)
        preset = await asyncio.to_thread(_with_confirmation, preset, here)
        return match_preset(preset, here)
    return None


def match_preset(preset: MachinePreset, here: Environment) -> PresetMatch:
    """Return whether a preset is used in the current environment of this machine."""
    there = preset.evidence.environment
    engines = {there.engine, here.engine}
    same_kind = BUILT_IN not in engines or len(engines) == 1
    usable = preset.verified and not there.identity_differences(here) and same_kind
    return PresetMatch(preset, there.differences(here), usable)


def measured_sentence(launch: Launch) -> str:
    """Return the sentence of this machine's tune for the running model. Empty where there is none.

    It reads files: call it off the event loop.
    """
    preset = preset_for_model(model_facts(launch.header))
    if preset is None or not match_preset(preset, Environment.for_launch(launch)).used:
        return ""
    return preset.evidence.sentence


async def outdated_presets(machine: Machine) -> tuple[PresetMatch, ...]:
    """Return the presets of this machine that were measured in another environment than the current one."""
    outdated = []
    for preset in await asyncio.to_thread(load_presets):
        if not preset.verified:
            continue
        with suppress(LauncherError, OSError):
            build = await _engine_now(preset)
            facts = await asyncio.to_thread(_facts_now, preset)
            here = await asyncio.to_thread(Environment.for_model, facts, build.name, build.version, machine)
            match = match_preset(preset, here)
            if match.changed:
                outdated.append(match)
    return tuple(outdated)


def _with_confirmation(preset: MachinePreset, here: Environment) -> MachinePreset:
    """Return an imported preset as verified, and keep it so, once this machine has confirmed it.

    Else return it unchanged.
    """
    if preset.verified:
        return preset
    with suppress(HistoryUnusable, OSError):
        with History() as history:
            speaking = confirming_sessions(preset, history, here)
        if speaking:
            evidence = preset.evidence.model_copy(update={"environment": here})
            preset = preset.model_copy(update={"verified_by": speaking, "evidence": evidence})
            save_preset(preset)
    return preset


async def _engine_now(preset: MachinePreset) -> EngineBuild:
    """Return the build that would now be used in place of the one that a preset was measured with.

    Its devices are not listed, because that would wake a GPU.
    """
    if preset.evidence.environment.engine == BUILT_IN:
        return await probe_engine(None)
    chosen = engine_in_use()
    program: Path | None = chosen.program if chosen is not None else find_on_path()
    return await probe_engine(program)


def _facts_now(preset: MachinePreset) -> ModelFacts:
    if preset.path is None or not preset.path.is_file():
        return preset.model
    return model_facts(read_model(preset.path))
