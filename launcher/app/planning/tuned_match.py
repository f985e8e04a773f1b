"""Compares tuned settings with the current environment, to decide whether they are used."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.base.errors import HistoryUnusable, LauncherError
from launcher.base.messages import FaceName, command_name, mark, message
from launcher.engine.builds.build import BUILT_IN, EngineBuild, find_llama_server_on_path
from launcher.engine.builds.installed import engine_in_use
from launcher.engine.builds.probe import probe_engine
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch, check_model, choose_build
from launcher.machine.machine import Machine
from launcher.models.gguf import read_model
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, ModelFacts, join_clauses, model_facts
from launcher.tuning.report import settings_line
from launcher.tuning.tuned_settings import (
    TunedSettings,
    find_confirming_sessions,
    find_tuned_settings,
    load_tuned_settings,
    save_tuned_settings,
)


@dataclass(frozen=True, slots=True)
class TunedMatch:
    """Tuned settings compared with the current environment. `changed` has a sentence for each change since the tune.

    They are `used` if they were measured or confirmed on this machine, and GPU, processor and model are the same. With
    another driver or engine version they are still used, and measuring again is suggested.
    """

    tuned: TunedSettings
    changed: tuple[str, ...]
    used: bool

    @property
    def differs(self) -> str:
        """The changes, as a clause of a sentence."""
        return join_clauses(self.changed)

    @property
    def line(self) -> str:
        """Message for the user."""
        if not self.tuned.verified:
            return message(
                "settings imported from another computer are used only after a measurement here confirms "
                "them: {settings}; run {tune}[, or {bench} with and without these settings]",
                settings=settings_line(self.tuned.settings),
                tune=command_name("tune", mark("Tune")),
                bench=command_name("bench"),
            )
        if not self.used:
            return message(
                "the tuned settings are not used, because {differs}; measure again with {command}",
                differs=self.differs,
                command=command_name("tune", mark("Tune")),
            )
        return message(
            "{settings}[; since then {differs}: measure again with {command}][; {option} ignores them]",
            settings=self.tuned.summary,
            differs=self.differs if self.changed else None,
            command=command_name("tune", mark("Tune")),
            option=FaceName("--no-preset"),
        )


async def find_tuned_match(options: ServeOptions, *, wake: bool = True) -> TunedMatch | None:
    """Return the tuned settings of the options' model, compared with this machine. None if there are none.

    Without `wake` no engine lists its devices, because that would wake a sleeping GPU. Imported settings become
    verified once sessions of this machine in the history confirm them. Errors (a broken model, an engine that does not
    answer) are not raised: the start reports them.
    """
    if not load_tuned_settings():
        return None
    with suppress(LauncherError, OSError):
        header = await asyncio.to_thread(check_model, replace(options, draft=0))
        facts = await asyncio.to_thread(model_facts, header)
        tuned = await asyncio.to_thread(find_tuned_settings, facts)
        if tuned is None:
            return None
        build = await (choose_build(options) if wake else _find_current_engine(tuned))
        current = await asyncio.to_thread(Environment.for_model, facts, build.name, build.version)
        tuned = await asyncio.to_thread(_with_confirmation, tuned, current)
        return match_tuned_settings(tuned, current)
    return None


def match_tuned_settings(tuned: TunedSettings, current: Environment) -> TunedMatch:
    """Compare tuned settings with the current environment of this machine."""
    measured = tuned.evidence.environment
    engines = {measured.engine, current.engine}
    same_kind = BUILT_IN not in engines or len(engines) == 1
    usable = tuned.verified and not measured.identity_differences(current) and same_kind
    return TunedMatch(tuned, measured.differences(current), usable)


def find_settings_for_launch(launch: Launch) -> TunedSettings | None:
    """Return this machine's tuned settings for the running model; None if there are none to use. Reads files."""
    tuned = find_tuned_settings(model_facts(launch.header))
    if tuned is None or not match_tuned_settings(tuned, Environment.for_launch(launch)).used:
        return None
    return tuned


async def find_outdated_matches(machine: Machine) -> tuple[TunedMatch, ...]:
    """Return the tuned settings of this machine that were measured in another environment than the current one."""
    outdated = []
    for tuned in await asyncio.to_thread(load_tuned_settings):
        if not tuned.verified:
            continue
        with suppress(LauncherError, OSError):
            build = await _find_current_engine(tuned)
            facts = await asyncio.to_thread(_read_current_facts, tuned)
            current = await asyncio.to_thread(Environment.for_model, facts, build.name, build.version, machine)
            match = match_tuned_settings(tuned, current)
            if match.changed:
                outdated.append(match)
    return tuple(outdated)


def _with_confirmation(tuned: TunedSettings, current: Environment) -> TunedSettings:
    """Mark imported settings as verified, and save them, if this machine's history confirms them. Return them."""
    if tuned.verified:
        return tuned
    with suppress(HistoryUnusable, OSError):
        with History() as history:
            confirming = find_confirming_sessions(tuned, history, current)
        if confirming:
            evidence = tuned.evidence.model_copy(update={"environment": current})
            tuned = tuned.model_copy(update={"verified_by": confirming, "evidence": evidence})
            save_tuned_settings(tuned)
    return tuned


async def _find_current_engine(tuned: TunedSettings) -> EngineBuild:
    """Return the build that would be used now for the tuned model.

    Its devices are not listed, because that would wake a sleeping GPU.
    """
    if tuned.evidence.environment.engine == BUILT_IN:
        return await probe_engine(None)
    chosen = engine_in_use()
    program: Path | None = chosen.program if chosen is not None else find_llama_server_on_path()
    return await probe_engine(program)


def _read_current_facts(tuned: TunedSettings) -> ModelFacts:
    """Return the facts of the tuned model, read from its file if that is still there."""
    if tuned.path is None or not tuned.path.is_file():
        return tuned.model
    return model_facts(read_model(tuned.path))
