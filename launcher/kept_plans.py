"""Plans for models that the user has set otherwise before: their own settings go before a plan's, where they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from launcher.base.errors import LauncherError
from launcher.engine.settings import OPTIONS, Value, remembered
from launcher.models.catalogue import Catalogue
from launcher.models.plan import Plan, Status, Wish, make_plans
from launcher.models.situation import Situation
from launcher.planner import downloaded


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan beside the settings that the user chose for its model the last time.

    `settings` are those of them that differ from the plan's, by name, and `planned_settings` what that has in their
    place. `mine` is the plan with them, None where they do not fit now.
    """

    planned: Plan
    mine: Plan | None
    settings: Mapping[str, Value]
    planned_settings: Mapping[str, Value]

    def with_kept(self, plan: Plan) -> bool:
        """Whether `plan` is the one with the user's settings: it is told apart by more than plans have, as threads."""
        return plan is self.mine


def kept_plans(plans: Sequence[Plan], catalogue: Catalogue, situation: Situation, wish: Wish) -> tuple[KeptPlan, ...]:
    """Return for the first plan of each file that is here what the user chose for it otherwise than it plans.

    Not for another computer that was described, nor for what is to run as somebody published it.
    """
    if situation.described or wish.intent == "as-published":
        return ()
    firsts: dict[tuple[str, str], Plan] = {}
    for plan in plans:
        firsts.setdefault((plan.entry.id, plan.file.quant), plan)
    found = (_kept(plan, catalogue, situation, wish) for plan in firsts.values())
    return tuple(each for each in found if each is not None)


def _kept(plan: Plan, catalogue: Catalogue, situation: Situation, wish: Wish) -> KeptPlan | None:
    path = downloaded(plan)
    planned = _settings_of(plan)
    kept = remembered(path) if path is not None else {}
    others = {name: value for name, value in kept.items() if planned[name] != value}
    if not others:
        return None
    fixed = {OPTIONS[name]: value for name, value in others.items() if name != "threads"}
    same = replace(wish, model=plan.entry.id, quant=plan.file.quant, **fixed)  # type: ignore[arg-type]
    mine = None
    with suppress(LauncherError):  # what this file or this engine takes no more
        mine = next(
            (each for each in make_plans(catalogue, situation, same) if each.status is not Status.TOO_BIG), None
        )
    return KeptPlan(
        plan,
        replace(mine, reasons=(*plan.reasons[:1], *mine.reasons[1:])) if mine else None,
        others,
        {name: planned[name] for name in others},
    )


def _settings_of(plan: Plan) -> dict[str, Value]:
    """Return a plan's settings by name; the threads are left to the engine."""
    setting = plan.setting
    return {
        "ctx": setting.context,
        "draft": 0 if setting.ngrams else setting.draft,
        "slots": setting.slots,
        "kv": setting.kv,
        "ubatch": setting.ubatch,
        "n_cpu_moe": setting.n_cpu_moe,
        "threads": None,
    }
