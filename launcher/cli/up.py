"""`mtp-launcher up`: download and serve the recommended plan."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from launcher.app.first.first_checks import FirstStartRequest, make_first_start_request
from launcher.app.first.first_start import make_server_starter, perform_first_start
from launcher.app.first.first_steps import StepStage
from launcher.app.planning import planner
from launcher.app.planning.start_settings import apply_own_settings
from launcher.app.serving.session import ServerSession
from launcher.app.serving.use_counting import UseCounting
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import LauncherError, NothingFits, Offline, RateLimited, Unreachable
from launcher.base.units import format_rate
from launcher.cli.layout import wrap_text
from launcher.cli.output import Note, print_error
from launcher.cli.progress import Reporter
from launcher.engine.server.last_start import save_last_model
from launcher.models.catalogue_load import load_catalogue
from launcher.models.download_target import find_catalogue_model
from launcher.models.plan import PlanCriteria, Status, make_plans
from launcher.models.smaller_model import describe_smaller, replace_misfits
from launcher.monitor.monitor import UNSEEN

if TYPE_CHECKING:
    from launcher.app.first.first_steps import StepProgress
    from launcher.models.plan import Plan
    from launcher.monitor.reply import Reply

_DEMO = "`mtp-launcher demo` runs a small built-in model; it needs neither a GPU nor the network."
_STEP_LABELS = {
    "engine": "Engine",
    "model": "Model",
    "verify": "Verify",
    "load": "Load",
    "warm up": "Warm up",
    "self-test": "Self-test",
}

_PLAN = JsonView(
    "ctx=setting.context kv=setting.kv draft=setting.draft backend=setting.backend status required_mib free_mib"
)
_STEP = JsonView(
    "step stage subject? how=detail note=progress.note? done_bytes=progress.counted_bytes "
    "bytes=progress.bytes bytes_per_second=progress.bytes_per_second:1 seconds_left=progress.seconds_left:1 "
    "percent:1 draft_n=drafted draft_n_accepted=accepted tokens_per_second:1 error=error.code"
)


async def run(options: argparse.Namespace) -> int:
    """Download, test and start the model, without the steps that are done already, and serve until a signal."""
    reporter = Reporter(as_json=options.json)
    request, plan = await _make_request(options)
    planned = {} if plan is None else to_json(plan, _PLAN)
    reporter.show_event({"event": "plan", "model": request.model, **planned}, _describe_plan(request, plan))
    session = ServerSession(port=options.port, takes_models=True)
    session.monitor.periods = UNSEEN
    counting = UseCounting(session)
    ready = False
    try:
        reply = await perform_first_start(request, make_server_starter(session), partial(_show_step, reporter))
        ready = True
        await asyncio.to_thread(save_last_model, request.model)
        data = {
            "event": "ready",
            **to_json(session.supervisor.endpoint, JsonView("url api_key")),
            "launcher_pid": os.getpid(),
            "pid": session.supervisor.engine_pid,
            **JsonView("first_token_s:3 text").write(reply),
        }
        reporter.show_event(data, [_describe_ready(session, reply)])
        if (error := await session.wait_until_ended()) is not None:
            raise error
        return 0
    except asyncio.CancelledError:
        if ready:
            return 0  # SIGINT and SIGTERM are the normal end
        paused = Note("Paused. Received data is kept; the same command resumes.")
        reporter.show_event({"event": "paused"}, [paused])
        raise
    except LauncherError as error:
        reporter.close()
        if ready or not _is_network_error(error):
            raise
        print_error(error, as_json=options.json)
        reporter.show_event(None, [Note(f"       {_DEMO}")])
        return 1
    finally:
        reporter.close()
        await session.stop()
        await counting.close()


async def _make_request(options: argparse.Namespace) -> tuple[FirstStartRequest, Plan | None]:
    """Return the start request and its plan, None for a file or the demo model.

    Raises NothingFits if no model fits, or if none was named and there is no usable GPU.
    """
    catalogue = load_catalogue()
    found = find_catalogue_model(options.model, catalogue) if options.model else None
    if options.model == "demo" or (options.model and found is None):
        return FirstStartRequest(options.model, intent=options.intent, use_tuned=not options.no_preset), None
    entry, file = found or (None, None)
    criteria = PlanCriteria(entry.id if entry else None, options.intent, file.quant if file else None)
    situation = (await planner.read_situation(planner.MachineDescription(wake=options.wake))).with_servers_running()
    plans, smaller = replace_misfits(make_plans(catalogue, situation, criteria), catalogue, situation, criteria)
    plans, kept_plans = await apply_own_settings(plans, catalogue, situation, criteria, use_tuned=not options.no_preset)
    # A file that the user names is tried, even if it seems too big.
    plan = next((plan for plan in plans if plan.status is not Status.TOO_BIG or file), None)
    if plan is None:
        if entry is not None:
            raise NothingFits(
                f"{entry.name} does not fit this machine as it is now.",
                f"{describe_smaller(smaller)} `mtp-launcher up {smaller.entry.id}` starts that."
                if smaller
                else f"`mtp-launcher plan {entry.id}` shows why. {_DEMO}",
                model=smaller.entry.id if smaller else None,
            )
        raise NothingFits(
            "No model of the catalogue fits this machine as it is now.", f"`mtp-launcher plan` shows why. {_DEMO}"
        )
    if situation.backend == "cpu" and entry is None:
        raise NothingFits(
            "There is no usable GPU here, so a model would run slowly on the processor.",
            f"`mtp-launcher up {plan.entry.id}` does it anyway; `mtp-launcher doctor` checks the GPU. {_DEMO}",
            model=plan.entry.id,
        )
    kept = next((each for each in kept_plans if each.planned is plan), None)
    if kept is not None and kept.kept_plan is not None:
        plan = kept.kept_plan
    return make_first_start_request(plan, kept), plan


def _is_network_error(error: LauncherError) -> bool:
    return isinstance(error, Offline | Unreachable | RateLimited)


def _describe_step(step: StepProgress) -> str:
    """Return the result of a step as text, "" if there is nothing to say."""
    parts: list[str] = []
    if step.detail is not None:
        parts.append(str(step.detail))
    if step.drafted:
        parts.append(f"{step.accepted} of {step.drafted} drafted tokens accepted")
    if step.tokens_per_second is not None:
        parts.append(format_rate(step.tokens_per_second))
    return ", ".join(parts)


def _describe_plan(request: FirstStartRequest, plan: Plan | None) -> Iterator[str]:
    if plan is None:
        yield Note(request.model)
        return
    drafts = plan.setting.draft_choice.label()
    settings = f"context {plan.setting.context:,}, KV {plan.setting.kv}, {drafts}"
    memory = f"needs {plan.required_mib:,} of {plan.free_mib:,} MiB ({plan.status.value})"
    yield Note(wrap_text(f"{plan.entry.name}, {plan.file.quant}, {settings}: {memory}"))
    for reason in plan.reasons[:2]:
        yield Note(wrap_text(reason, "  "))


def _show_step(reporter: Reporter, step: StepProgress) -> None:
    """Show a line for each finished step, and a bar or a note while it runs."""
    name, running = _STEP_LABELS[step.step], step.stage is StepStage.RUNNING
    data, state = {"event": "step", **to_json(step, _STEP)}, (step.stage, step.detail)
    if running and step.progress.counts_bytes and not step.detail:
        reporter.show_progress(name, step.progress, data, state=state)
        return
    result = _describe_step(step) or "done"
    if running:
        result = " ".join(filter(None, (step.progress.note, step.detail)))
    lines = []
    if result and step.stage in (StepStage.RUNNING, StepStage.DONE):
        lines = [Note(f"{name + ':':<10} {', '.join(filter(None, (step.subject, result)))}")]
    reporter.show_event(data, lines, topic=name, state=(*state, step.progress.note))


def _describe_ready(session: ServerSession, reply: Reply | None) -> str:
    endpoint, launch = session.supervisor.endpoint, session.supervisor.launch
    name = launch.header.name if launch else ""
    first_token_s = reply.first_token_s if reply else None
    first = f"first token {first_token_s:.2f} s" if first_token_s is not None else ""
    return f"\n{name} is ready. {first}\n  address  {endpoint.url}/v1\n  API key  {endpoint.api_key}\nCtrl-C stops it."
