"""`mtp-launcher up`: download and serve the recommended plan."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from launcher.base.units import format_rate
from launcher.cli.bar import ProgressBar
from launcher.cli.layout import wrap_text
from launcher.cli.machine_options import INTENTS
from launcher.cli.output import print_error, print_json, round_figure
from launcher.cli.quantities import parse_int

if TYPE_CHECKING:
    from launcher.app.first_checks import StartRequest
    from launcher.app.first_steps import StepProgress
    from launcher.app.session import Session
    from launcher.base.errors import LauncherError
    from launcher.models.plan import Plan
    from launcher.monitor.reply import Reply

_EVENT_S = 0.5
_DEMO = "`mtp-launcher demo` shows all of it on a small built-in model, with neither a GPU nor the network."
_WORDS = {
    "engine": "Engine",
    "model": "Model",
    "verify": "Verify",
    "load": "Load",
    "warm up": "Warm up",
    "self-test": "Self-test",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="ID[:QUANT] | FILE",
        help='a model of the catalogue, a .gguf file, or "demo" (default: the one that `plan` recommends)',
    )
    parser.add_argument("--intent", choices=INTENTS, default="balanced", help="what matters most (default: balanced)")
    parser.add_argument("--port", type=parse_int, metavar="P", help="port to listen on (default: the one of last time)")
    parser.add_argument("--wake", action="store_true", help="wake a sleeping GPU to ask it")
    parser.add_argument(
        "--no-preset", action="store_true", help="do not take the settings that a tune of this machine found best"
    )
    parser.epilog = "Interrupt it whenever you like: the same command goes on where it was. Ctrl-C stops the server."


async def run(options: argparse.Namespace) -> int:
    """Run all remaining steps, then serve until a signal."""
    from launcher.app.first_start import perform_first_start, server_starter
    from launcher.app.session import Session
    from launcher.app.use_counting import UseCounting
    from launcher.base.errors import LauncherError
    from launcher.engine.server.started import save_last_model

    show: _TextOutput | _JsonOutput = _JsonOutput() if options.json else _TextOutput()
    aim, plan = await _aim(options)
    show.begin(aim, plan)
    session = Session(port=options.port)
    counting = UseCounting(session)
    ready = False
    try:
        reply = await perform_first_start(aim, server_starter(session), show.step)
        ready = True
        await asyncio.to_thread(save_last_model, aim.model)
        show.ready(session, reply)
        if (error := await session.wait_until_ended()) is not None:
            raise error
        return 0
    except asyncio.CancelledError:
        show.close()
        if ready:
            return 0  # SIGINT and SIGTERM are the normal end
        show.paused()
        raise
    except LauncherError as error:
        show.close()
        if ready or not _needs_the_network(error):
            raise
        print_error(error, as_json=options.json)
        show.demo()
        return 1
    finally:
        show.close()
        await session.stop()
        await counting.close()


async def _aim(options: argparse.Namespace) -> tuple[StartRequest, Plan | None]:
    """Return the start request and its plan. Raises NothingFits with alternatives."""
    from launcher.app import planner
    from launcher.app.first_checks import StartRequest, start_request_of
    from launcher.app.start_settings import apply_own_settings
    from launcher.base.errors import NothingFits
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.download_target import find_catalogue_model
    from launcher.models.plan import PlanCriteria, Status, make_plans

    catalogue = load_catalogue()
    named = find_catalogue_model(options.model, catalogue) if options.model else None
    if options.model == "demo" or (options.model and named is None):
        return StartRequest(options.model, intent=options.intent, use_tuned=not options.no_preset), None
    entry, file = named or (None, None)
    wish = PlanCriteria(entry.id if entry else None, options.intent, file.quant if file else None)
    situation = (await planner.read_situation(planner.MachineWish(wake=options.wake))).with_servers_running()
    plans = make_plans(catalogue, situation, wish)
    plans, own = await apply_own_settings(plans, catalogue, situation, wish, use_tuned=not options.no_preset)
    plan = next((plan for plan in plans if plan.status is not Status.TOO_BIG or file), None)
    if plan is None:
        raise NothingFits("No model of the catalogue fits this machine as it is now.", f"`mtp-launcher plan`. {_DEMO}")
    if situation.backend == "cpu" and entry is None:
        raise NothingFits(
            "There is no GPU that can be used here, so a model would run on the processor, slowly.",
            f"`mtp-launcher up {plan.entry.id}` does that all the same; `mtp-launcher doctor` says what is with the"
            f" GPU. {_DEMO}",
            model=plan.entry.id,
        )
    kept = next((each for each in own if each.planned is plan), None)
    if kept is not None and kept.mine is not None:
        plan = kept.mine
    return start_request_of(plan, kept), plan


def _needs_the_network(error: LauncherError) -> bool:
    from launcher.base.errors import Offline, RateLimited, Unreachable

    return isinstance(error, Offline | Unreachable | RateLimited)


def describe_step(told: StepProgress) -> str:
    """Return the result of a step as text."""
    parts: list[str] = []
    if told.how is not None:
        parts.append(str(told.how))
    if told.drafted:
        parts.append(f"{told.accepted} of {told.drafted} drafted tokens accepted")
    if told.tokens_per_second is not None:
        parts.append(format_rate(told.tokens_per_second))
    return ", ".join(parts)


class _TextOutput:
    """Text output: a line for each finished step, and a bar or a percentage while it runs."""

    def __init__(self) -> None:
        self._bar = ProgressBar()
        self._last: dict[str, tuple[object, str]] = {}

    def begin(self, aim: StartRequest, plan: Plan | None) -> None:
        if plan is None:
            print(aim.model, file=sys.stderr)
            return
        setting = plan.setting
        drafts = f"draft {setting.draft}" if setting.draft else "MTP off"
        needs = f"needs {plan.required_mib:,} of {plan.free_mib:,} MiB ({plan.status.value})"
        what = f"{plan.entry.name}, {plan.file.quant}, context {setting.context:,}, KV {setting.kv}, {drafts}: {needs}"
        print(wrap_text(what), file=sys.stderr)
        for reason in plan.reasons[:2]:
            print(wrap_text(reason, "  "), file=sys.stderr)

    def step(self, told: StepProgress) -> None:
        from launcher.app.first_steps import Stage

        name = _WORDS[told.step]
        if told.stage is Stage.RUNNING and told.done_bytes is not None and not told.how:
            self._bar.show_progress(
                name,
                told.done_bytes,
                told.bytes,
                speed=told.bytes_per_second,
                left_s=told.seconds_left,
                note=told.note,
            )
            return
        if told.stage not in (Stage.RUNNING, Stage.DONE):
            return
        said = describe_step(told) if told.stage is Stage.DONE else " ".join(filter(None, (told.note, told.how)))
        news = (told.stage, said)
        if self._last.get(told.step) == news or (told.stage is Stage.RUNNING and not said):
            return
        self._last[told.step] = news
        self._bar.close()
        line = ", ".join(filter(None, (told.subject, said or "done")))
        print(f"{name + ':':<10} {line}", file=sys.stderr, flush=True)

    def ready(self, session: Session, reply: Reply) -> None:
        endpoint = session.supervisor.endpoint
        launch = session.supervisor.launch
        name = launch.header.name if launch else ""
        first = f"first token {reply.first_token_s:.2f} s" if reply.first_token_s is not None else ""
        print(
            f"\n{name} is ready. {first}"
            f"\n  address  {endpoint.url}/v1"
            f"\n  API key  {endpoint.api_key}"
            "\nCtrl-C stops it.",
            flush=True,
        )

    def paused(self) -> None:
        print("Paused: what arrived is kept. The same command goes on from there.", file=sys.stderr)

    def demo(self) -> None:
        print(f"       {_DEMO}", file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


class _JsonOutput:
    """JSON output: one object per line."""

    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}
        self._last: dict[str, object] = {}

    def begin(self, aim: StartRequest, plan: Plan | None) -> None:
        told: dict[str, Any] = {"event": "plan", "model": aim.model}
        if plan is not None:
            setting = plan.setting
            told |= {"ctx": setting.context, "kv": setting.kv, "draft": setting.draft, "backend": setting.backend}
            told |= {"status": plan.status.value, "required_mib": plan.required_mib, "free_mib": plan.free_mib}
        print_json(told)

    def step(self, told: StepProgress) -> None:
        now_s, kind = time.monotonic(), (told.stage, told.how)
        if self._last.get(told.step) == kind and now_s - self._told_s.get(told.step, 0.0) < _EVENT_S:
            return
        self._last[told.step], self._told_s[told.step] = kind, now_s
        print_json(
            {
                "event": "step",
                "step": told.step.value,
                "stage": told.stage.value,
                "subject": told.subject or None,
                "how": told.how,
                "note": told.note or None,
                "done_bytes": told.done_bytes,
                "bytes": told.bytes,
                "bytes_per_second": round_figure(told.bytes_per_second),
                "seconds_left": round_figure(told.seconds_left),
                "percent": round_figure(told.percent),
                "draft_n": told.drafted,
                "draft_n_accepted": told.accepted,
                "tokens_per_second": round_figure(told.tokens_per_second),
                "error": told.error.code if told.error else None,
            }
        )

    def ready(self, session: Session, reply: Reply) -> None:
        endpoint = session.supervisor.endpoint
        ready = {"event": "ready", "url": endpoint.url, "api_key": endpoint.api_key, "launcher_pid": os.getpid()}
        pid = session.supervisor.engine_pid
        print_json(ready | {"pid": pid, "first_token_s": round_figure(reply.first_token_s, 3), "text": reply.text})

    def paused(self) -> None:
        print_json({"event": "paused"})

    def demo(self) -> None:
        """Do nothing: a program finds the demo in --help."""

    def close(self) -> None:
        """Do nothing: no line is open."""
