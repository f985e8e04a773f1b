"""Compares tuned settings with the current environment, to decide whether they are used.

A machine preset is a record of tuned settings with the evidence for them: see tuning/machine_preset.py.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.base.errors import HistoryUnusable, LauncherError
from launcher.base.messages import message
from launcher.engine.builds.build import BUILT_IN, EngineBuild, find_llama_server_on_path
from launcher.engine.builds.installed import engine_in_use
from launcher.engine.builds.probe import probe_engine
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


@dataclass(frozen=True, slots=True)
class PresetMatch:
    """A preset compared with the current environment. `changed` are sentences on what changed since its measurement.

    It is `used` if it was measured or confirmed on this machine, and GPU, processor and model are the same. With
    another driver or engine version it is still used, and measuring again is suggested.
    """

    preset: MachinePreset
    changed: tuple[str, ...]
    used: bool

    @property
    def differs(self) -> str:
        """The changes, as a clause of a sentence."""
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


async def find_preset_match(options: ServeOptions, *, wake: bool = True) -> PresetMatch | None:
    """Return the preset for the model of these options, compared with this machine; None if there is none.

    Without `wake` no engine lists its devices, because that would wake a sleeping GPU. An imported preset becomes
    verified once sessions of this machine in the history confirm it. Errors (a broken model, an engine that does not
    answer) are not raised: the start reports them.
    """
    if not load_presets():
        return None
    with suppress(LauncherError, OSError):
        header = await asyncio.to_thread(check_model, replace(options, draft=0))
        facts = await asyncio.to_thread(model_facts, header)
        preset = await asyncio.to_thread(preset_for_model, facts)
        if preset is None:
            return None
        build = await (choose_build(options) if wake else _find_current_engine(preset))
        current = await asyncio.to_thread(Environment.for_model, facts, build.name, build.version)
        preset = await asyncio.to_thread(_with_confirmation, preset, current)
        return match_preset(preset, current)
    return None


def match_preset(preset: MachinePreset, current: Environment) -> PresetMatch:
    """Compare a preset with the current environment of this machine."""
    measured = preset.evidence.environment
    engines = {measured.engine, current.engine}
    same_kind = BUILT_IN not in engines or len(engines) == 1
    usable = preset.verified and not measured.identity_differences(current) and same_kind
    return PresetMatch(preset, measured.differences(current), usable)


def measured_sentence(launch: Launch) -> str:
    """Return the sentence of this machine's tune for the running model; empty if there is none. Reads files."""
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
            build = await _find_current_engine(preset)
            facts = await asyncio.to_thread(_read_current_facts, preset)
            current = await asyncio.to_thread(Environment.for_model, facts, build.name, build.version, machine)
            match = match_preset(preset, current)
            if match.changed:
                outdated.append(match)
    return tuple(outdated)


def _with_confirmation(preset: MachinePreset, current: Environment) -> MachinePreset:
    """Mark an imported preset as verified, and save it, if this machine's history confirms it. Return the preset."""
    if preset.verified:
        return preset
    with suppress(HistoryUnusable, OSError):
        with History() as history:
            confirming = confirming_sessions(preset, history, current)
        if confirming:
            evidence = preset.evidence.model_copy(update={"environment": current})
            preset = preset.model_copy(update={"verified_by": confirming, "evidence": evidence})
            save_preset(preset)
    return preset


async def _find_current_engine(preset: MachinePreset) -> EngineBuild:
    """Return the build that would be used now for a preset's model.

    Its devices are not listed, because that would wake a sleeping GPU.
    """
    if preset.evidence.environment.engine == BUILT_IN:
        return await probe_engine(None)
    chosen = engine_in_use()
    program: Path | None = chosen.program if chosen is not None else find_llama_server_on_path()
    return await probe_engine(program)


def _read_current_facts(preset: MachinePreset) -> ModelFacts:
    """Return the facts of the preset's model, read from its file if that is still there."""
    if preset.path is None or not preset.path.is_file():
        return preset.model
    return model_facts(read_model(preset.path))
