"""Suggestions where a model is too big for a machine."""

import pytest

from launcher.base.errors import NothingFits
from launcher.models.catalogue_load import load_catalogue
from launcher.models.choice import choose_file
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import Situation, describe_machine
from launcher.models.smaller_model import find_smaller, replace_misfits

CATALOGUE = load_catalogue(hub_figures=False)
MOE = "qwen3.6-35b-a3b-mtp"


def machine(gib: float, host_gib: float) -> Situation:
    return describe_machine((gib,), host_gib=host_gib)


def plans_on(gib: float, host_gib: float, criteria: PlanCriteria) -> tuple[tuple[Plan, ...], Plan | None]:
    there = machine(gib, host_gib)
    return replace_misfits(make_plans(CATALOGUE, there, criteria), CATALOGUE, there, criteria)


def test_a_plan_beyond_host_memory_is_too_big() -> None:
    (plan, *_) = make_plans(CATALOGUE, machine(6, 16), PlanCriteria(MOE, quant="UD-Q4_K_M"))
    assert (plan.status, plan.host_short) == (Status.TOO_BIG, True)
    assert plan.needed_mib < plan.free_mib
    (plan, *_) = make_plans(CATALOGUE, machine(6, 64), PlanCriteria(MOE, quant="UD-Q4_K_M"))
    assert (plan.status, plan.host_short) == (Status.OFFLOADS, False)


@pytest.mark.cases(6)
@pytest.mark.parametrize("host_gib", [4, 8, 16, 32])
@pytest.mark.parametrize("gib", [2, 3, 4, 6, 8])
def test_every_card_has_a_plan_that_works(gib: float, host_gib: float) -> None:
    plans, _ = plans_on(gib, host_gib, PlanCriteria())
    assert plans[0].status is not Status.TOO_BIG
    assert not any(plan.host_short for plan in plans)


def test_a_named_model_that_barely_fits_has_a_smaller_one_beside_it() -> None:
    plans, smaller = plans_on(15, 8, PlanCriteria("qwen3-32b"))
    assert (plans[0].entry.id, plans[0].status is Status.TOO_BIG, plans[0].group) == ("qwen3-32b", False, 1)
    assert smaller is not None
    assert smaller.group == 0


def test_no_other_model_is_named_beside_a_good_plan() -> None:
    plans, smaller = plans_on(24, 32, PlanCriteria("qwen3-32b"))
    assert (plans[0].group, smaller) == (0, None)


def test_a_named_file_stays_and_a_smaller_model_is_named() -> None:
    plans, smaller = plans_on(6, 16, PlanCriteria(MOE, quant="UD-Q4_K_M"))
    assert {plan.file.quant for plan in plans} == {"UD-Q4_K_M"}
    assert smaller is not None
    assert smaller.status is not Status.TOO_BIG


def test_settings_that_fit_nowhere_are_dropped() -> None:
    criteria = PlanCriteria(MOE, context=262_144, kv="f16", n_cpu_moe=0)
    smaller = find_smaller(CATALOGUE, machine(4, 8), criteria)
    assert smaller is not None
    assert smaller.status is not Status.TOO_BIG


def test_no_model_is_named_where_nothing_fits() -> None:
    assert find_smaller(CATALOGUE, machine(1, 1), PlanCriteria(MOE)) is None


def test_a_file_to_download_that_is_too_big_names_a_smaller_model() -> None:
    there = machine(8, 16)
    with pytest.raises(NothingFits) as refused:
        choose_file(CATALOGUE, CATALOGUE.find("qwen3.5-397b-a17b"), None, there)
    model, _, quant = str(refused.value.facts["smaller"]).partition(":")
    choice = choose_file(CATALOGUE, CATALOGUE.find(model), quant, there)
    assert choice.plan is not None
    assert choice.plan.status is not Status.TOO_BIG
    assert CATALOGUE.find(model).name in refused.value.hint
