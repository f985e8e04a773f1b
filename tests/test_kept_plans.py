"""What the user set for a model the last time goes before a plan's own settings, where it fits."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.engine.settings import Settings, remember
from launcher.kept_plans import KeptPlan, kept_plans
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library_index import Record, keep_record
from launcher.models.plan import Plan, Wish, make_plans
from launcher.models.situation import Situation, described
from tests.cli.conftest import own_model
from tools.sparse_models.models import model as made

WISH = Wish(model="own")


@pytest.fixture
def path(home: Path) -> Path:
    """A model of the user's own that is here."""
    path = own_model(home, made("qwen35-9b-q4_k_m"))
    keep_record(Record(paths=(path,), bytes=path.stat().st_size, model="own", quant="Q"))
    return path


def this(memory_gib: float = 24.0) -> Situation:
    """A computer that counts as this one."""
    return replace(described(memory_gib, backend="cuda"), described=False)


def kept(settings: Settings, path: Path, situation: Situation | None = None) -> tuple[list[Plan], list[KeptPlan]]:
    remember(path, settings)
    situation = situation or this()
    catalogue = load_catalogue()
    plans = make_plans(catalogue, situation, WISH)
    return list(plans), list(kept_plans(plans, catalogue, situation, WISH))


def test_what_the_user_set_is_the_plans_with_all_that_follows_from_it(path: Path) -> None:
    (plan, *_), (found,) = kept({"ctx": 32_768, "draft": 4, "kv": "q8_0", "threads": 3}, path)
    assert found.planned == plan
    assert found.settings == {"ctx": 32_768, "draft": 4, "threads": 3}
    assert found.planned_settings == {"ctx": plan.setting.context, "draft": plan.setting.draft, "threads": None}
    assert found.mine is not None
    assert (found.mine.setting.context, found.mine.setting.draft) == (32_768, 4)
    assert found.mine.required_mib < plan.required_mib
    assert found.mine.reasons[0] == plan.reasons[0]
    assert found.with_kept(found.mine)
    assert not found.with_kept(plan)


def test_threads_alone_are_the_users_own_though_no_plan_has_any(path: Path) -> None:
    (plan, *_), (found,) = kept({"threads": 3}, path)
    assert found.settings == {"threads": 3}
    assert found.mine == plan
    assert found.with_kept(found.mine)
    assert not found.with_kept(plan)


def test_what_does_not_fit_any_more_is_told_and_not_taken(path: Path) -> None:
    plans, (found,) = kept({"ctx": 262_144, "ubatch": 4_096, "draft": 3}, path, this(8.0))
    assert found.mine is None
    assert found.settings["ctx"] == 262_144
    assert not found.with_kept(plans[0])


def test_without_a_difference_there_is_nothing_to_say(path: Path) -> None:
    (plan, *_), found = kept({}, path)
    assert not found
    setting = plan.setting
    _, found = kept({"ctx": setting.context, "draft": setting.draft, "kv": setting.kv, "slots": 1}, path)
    assert not found


def test_another_computer_and_a_published_run_stay_as_they_are(path: Path) -> None:
    plans, _ = kept({"ctx": 32_768}, path)
    catalogue, other = load_catalogue(), described(24.0, backend="cuda")
    assert kept_plans(plans, catalogue, other, WISH) == ()
    assert kept_plans(plans, catalogue, this(), replace(WISH, intent="as-published")) == ()


def test_a_model_that_is_not_here_has_none(path: Path) -> None:
    remember(path, {"ctx": 32_768})
    catalogue = load_catalogue()
    wish = Wish(model="qwen3.6-35b-a3b-mtp")
    assert kept_plans(make_plans(catalogue, this(), wish), catalogue, this(), wish) == ()
