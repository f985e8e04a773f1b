"""`mtp-launcher up`: the recommended plan, downloaded and served."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from launcher.base.units import rate
from launcher.cli.bar import Bar
from launcher.cli.layout import filled
from launcher.cli.machine_options import INTENTS
from launcher.cli.output import print_error, print_json, rounded
from launcher.cli.quantities import whole

if TYPE_CHECKING:
    from launcher.app import Reply, Session
    from launcher.base.errors import LauncherError
    from launcher.first_checks import Aim
    from launcher.first_steps import StepTold
    from launcher.models.plan import Plan

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
    parser.add_argument("--port", type=whole, metavar="P", help="port to listen on (default: the one of last time)")
    parser.add_argument("--wake", action="store_true", help="wake a sleeping GPU to ask it")
    parser.add_argument(
        "--no-preset", action="store_true", help="do not take the settings that a tune of this machine found best"
    )
    parser.epilog = "Interrupt it whenever you like: the same command goes on where it was. Ctrl-C stops the server."


async def run(options: argparse.Namespace) -> int:
    """Do all that is left to do, then serve until the end is asked for."""
    from launcher import app
    from launcher.base.errors import LauncherError
    from launcher.engine.last import keep_last
    from launcher.first_start import first_start, serve_by
    from launcher.use_counting import UseCounting

    show: _Lines | _JsonLines = _JsonLines() if options.json else _Lines()
    aim, plan = await _aim(options)
    show.begin(aim, plan)
    session = app.Session(port=options.port)
    counting = UseCounting(session)
    ready = False
    try:
        reply = await first_start(aim, serve_by(session, aim), show.step)
        ready = True
        await asyncio.to_thread(keep_last, aim.model)
        show.ready(session, reply)
        if (error := await session.wait_until_ended()) is not None:
            raise error
        return 0
    except asyncio.CancelledError:
        show.close()
        if ready:
            return 0  # SIGINT and SIGTERM are the ordinary end
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


async def _aim(options: argparse.Namespace) -> tuple[Aim, Plan | None]:
    """Return what is to be started. Raises NothingFits with what could be done in place of it."""
    from launcher import planner
    from launcher.base.errors import NothingFits
    from launcher.first_checks import Aim, aim_of
    from launcher.machine_presets import with_presets
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import Status, Wish, make_plans
    from launcher.models.wanted import named_model

    catalogue = load_catalogue()
    named = named_model(options.model, catalogue) if options.model else None
    if options.model == "demo" or (options.model and named is None):
        return Aim(options.model), None
    entry, file = named or (None, None)
    wish = Wish(entry.id if entry else None, options.intent, file.quant if file else None)
    situation = await planner.situation(planner.MachineWish(wake=options.wake))
    plans = make_plans(catalogue, situation, wish)
    if not options.no_preset:
        plans = await with_presets(plans, catalogue, situation, wish)
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
    return aim_of(plan), plan


def _needs_the_network(error: LauncherError) -> bool:
    from launcher.base.errors import Offline, RateLimited, Unreachable

    return isinstance(error, Offline | Unreachable | RateLimited)


def words_of(told: StepTold) -> str:
    """Return how a step was done, in words."""
    parts: list[str] = []
    if told.how is not None:
        parts.append(str(told.how))
    if told.drafted:
        parts.append(f"{told.accepted} of {told.drafted} drafted tokens accepted")
    if told.tokens_per_second is not None:
        parts.append(rate(told.tokens_per_second))
    return ", ".join(parts)


class _Lines:
    """What a person sees: a line for each step that ends, and a bar or a percentage while it runs."""

    def __init__(self) -> None:
        self._bar = Bar()
        self._last: dict[str, tuple[object, str]] = {}

    def begin(self, aim: Aim, plan: Plan | None) -> None:
        if plan is None:
            print(aim.model, file=sys.stderr)
            return
        setting = plan.setting
        drafts = f"draft {setting.draft}" if setting.draft else "MTP off"
        needs = f"needs {plan.required_mib:,} of {plan.free_mib:,} MiB ({plan.status.value})"
        what = f"{plan.entry.name}, {plan.file.quant}, context {setting.context:,}, KV {setting.kv}, {drafts}: {needs}"
        print(filled(what), file=sys.stderr)
        for reason in plan.reasons[:2]:
            print(filled(reason, "  "), file=sys.stderr)

    def step(self, told: StepTold) -> None:
        from launcher.first_steps import Stage

        name = _WORDS[told.step]
        if told.stage is Stage.RUNNING and told.done_bytes is not None and not told.how:
            self._bar.show(
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
        said = words_of(told) if told.stage is Stage.DONE else " ".join(filter(None, (told.note, told.how)))
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


class _JsonLines:
    """What a program sees: one object a line."""

    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}
        self._last: dict[str, object] = {}

    def begin(self, aim: Aim, plan: Plan | None) -> None:
        told: dict[str, Any] = {"event": "plan", "model": aim.model}
        if plan is not None:
            setting = plan.setting
            told |= {"ctx": setting.context, "kv": setting.kv, "draft": setting.draft, "backend": setting.backend}
            told |= {"status": plan.status.value, "required_mib": plan.required_mib, "free_mib": plan.free_mib}
        print_json(told)

    def step(self, told: StepTold) -> None:
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
                "bytes_per_second": rounded(told.bytes_per_second),
                "seconds_left": rounded(told.seconds_left),
                "percent": rounded(told.percent),
                "draft_n": told.drafted,
                "draft_n_accepted": told.accepted,
                "tokens_per_second": rounded(told.tokens_per_second),
                "error": told.error.code if told.error else None,
            }
        )

    def ready(self, session: Session, reply: Reply) -> None:
        endpoint = session.supervisor.endpoint
        ready = {"event": "ready", "url": endpoint.url, "api_key": endpoint.api_key, "launcher_pid": os.getpid()}
        pid = session.supervisor.engine_pid
        print_json(ready | {"pid": pid, "first_token_s": rounded(reply.first_token_s, 3), "text": reply.text})

    def paused(self) -> None:
        print_json({"event": "paused"})

    def demo(self) -> None:
        """A program knows the demo by the verb's --help."""

    def close(self) -> None:
        """Nothing is left open."""
