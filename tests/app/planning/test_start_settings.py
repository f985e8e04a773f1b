"""Settings of a start: requested, kept, tuned and recommended ones in their order, for every way to start."""

import asyncio
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from launcher.app.first.first_checks import FirstStartRequest, make_first_start_request
from launcher.app.first.first_start import resolve_requested_start
from launcher.app.planning import start_settings
from launcher.app.planning.planner import options_for_plan
from launcher.app.planning.start_settings import (
    KeptPlan,
    OwnSettings,
    ResolvedStart,
    SettingOrigin,
    apply_own_settings,
    plan_for_start,
    resolve_plan,
    resolve_start,
)
from launcher.app.planning.tuned_match import TunedMatch
from launcher.app.serving.session import ServerSession
from launcher.base.errors import ModelHasNoHead, ModelMissing, ModelUnexpected
from launcher.base.paths import models_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import check_model, plan_settings_of
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import KEPT_REPLACED, NO_HEAD
from launcher.engine.settings import Settings, load_model_settings, save_model_settings
from launcher.models.catalogue_load import load_catalogue, shipped_models
from launcher.models.library_index import Record, store_record
from launcher.models.locate import select_model
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import Situation, describe_machine
from launcher.tuning.tuned_settings import TunedSettings
from tests.cli import test_plan_engine as engines
from tests.cli.conftest import add_own_model
from tests.models.test_side_files import projector
from tests.tuning.measured import ENVIRONMENT
from tools.sparse_models.models import Model
from tools.sparse_models.models import model as make_sparse_model
from tools.sparse_models.write import write

CRITERIA = PlanCriteria(model="own")


@pytest.fixture
def own_path(home: Path) -> Path:
    """A model of the user's own catalogue that is here; it recommends a context of 65,536 and a KV cache of q8_0."""
    path = add_own_model(home, make_sparse_model("qwen35-9b-q4_k_m"))
    store_record(Record(paths=(path,), bytes=path.stat().st_size, model="own", quant="Q"))
    return path


@pytest.fixture
def unlisted_path(tmp_path: Path) -> Path:
    """A model of 9B that is not in the catalogue."""
    path = tmp_path / "nine.gguf"
    write(path, "Nine", make_sparse_model("qwen35-9b-q4_k_m"))
    return path


def this_computer(memory_gib: float = 24.0) -> Situation:
    """A situation that stands for this computer."""
    return replace(describe_machine(memory_gib, backend="cuda"), described=False)


@pytest.fixture
def local_situation(monkeypatch: pytest.MonkeyPatch) -> list[Situation]:
    """The situation in which every start is planned; a test may replace it."""
    found = [this_computer()]

    async def read(_criteria: object, **_kwargs: object) -> Situation:
        return found[0]

    monkeypatch.setattr(start_settings, "read_situation", read)
    return found


@pytest.fixture
def tuned_values(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | str]:
    """The tuned settings of this machine, for any model; a test fills them."""
    settings: dict[str, int | str] = {}

    async def find(_options: object, *, wake: bool = True) -> TunedMatch | None:
        if not settings:
            return None
        evidence = {"mtp": "on", "environment": ENVIRONMENT}
        preset = {"settings": settings, "evidence": evidence, "verified_by": ["x"]}
        return TunedMatch(TunedSettings.model_validate(preset), (), used=True)

    monkeypatch.setattr(start_settings, "find_tuned_match", find)
    return settings


def values(start: ResolvedStart, *names: str) -> list[object]:
    found = {"ctx": start.options.context, "kv": start.options.kv, "draft": start.options.draft}
    return [found.get(name, getattr(start.options, name, None)) for name in names]


@pytest.mark.usefixtures("local_situation")
class TestPrecedence:
    async def test_the_plan_gives_the_recommended_settings(self, own_path: Path) -> None:
        for named in ("own", "own:Q", str(own_path)):
            start = await resolve_start(named)
            assert values(start, "ctx", "kv", "draft") == [65_536, "q8_0", 2]
            assert start.plan is not None
            assert start.plan.status is Status.FITS
            assert start.chosen == {}  # recommended settings do not count as chosen
            assert {start.origins[name] for name in ("ctx", "kv", "draft")} == {SettingOrigin.RECOMMENDED}

    async def test_a_file_outside_the_catalogue_has_the_longest_context_that_fits(
        self, unlisted_path: Path, local_situation: list[Situation]
    ) -> None:
        for gib, context in ((8, 32_768), (12, 131_072), (24, 262_144)):
            local_situation[0] = this_computer(gib)
            start = await resolve_start(str(unlisted_path))
            found, kv, _ = values(start, "ctx", "kv", "draft")
            assert found >= context
            assert kv in ("f16", "q8_0")
            assert start.plan is not None
            assert start.plan.status in (Status.FITS, Status.TIGHT)

    async def test_sources_of_settings_have_their_order(
        self, own_path: Path, tuned_values: dict[str, int | str]
    ) -> None:
        tuned_values |= {"draft": 4, "kv": "q5_1", "ubatch": 256, "ctx": 4_096}
        save_model_settings(own_path, {"kv": "q4_0", "ubatch": 1_024})
        start = await resolve_start("own", {"ubatch": 128})
        assert values(start, "ctx", "kv", "draft", "ubatch") == [65_536, "q4_0", 4, 128]
        assert {name: start.origins[name].value for name in ("ctx", "kv", "draft", "ubatch")} == {
            "ctx": "recommended",
            "kv": "kept",
            "draft": "tuned",
            "ubatch": "asked",
        }
        assert start.chosen == {"kv": "q4_0", "ubatch": 128}

    async def test_a_kept_cache_type_of_a_fork_is_left_out_where_the_engine_lacks_it(self, own_path: Path) -> None:
        catalogue, situation, criteria = load_catalogue(), this_computer(), PlanCriteria("own")
        save_model_settings(own_path, {"kv": "turbo3", "ubatch": 1_024, "draft": 3})
        plans = make_plans(catalogue, situation, criteria)
        _, kept = await apply_own_settings(plans, catalogue, situation, criteria)
        assert [each.settings for each in kept] == [{"ubatch": 1_024, "draft": 3}]

    async def test_slots_of_a_preset_are_used(self, own_path: Path) -> None:
        entry = own_path.with_name("own.toml")
        entry.write_text(entry.read_text() + "slots = 2\n")
        start = await resolve_start("own")
        assert values(start, "ctx", "slots") == [65_536, 2]

    async def test_kept_and_tuned_settings_can_be_ignored(
        self, own_path: Path, tuned_values: dict[str, int | str]
    ) -> None:
        tuned_values |= {"draft": 4}
        save_model_settings(own_path, {"kv": "q4_0", "draft": 3})
        found = [
            values(await resolve_start("own", use_kept=kept, use_tuned=by_tune), "kv", "draft")
            for kept in (True, False)
            for by_tune in (True, False)
        ]
        assert found == [["q4_0", 3], ["q4_0", 3], ["q8_0", 4], ["q8_0", 2]]

    async def test_settings_kept_by_an_applied_tune_count_as_tuned(
        self, own_path: Path, tuned_values: dict[str, int | str]
    ) -> None:
        tuned_values |= {"draft": 4, "ubatch": 256}
        save_model_settings(own_path, {"draft": 4, "kv": "q4_0"})
        start = await resolve_start("own")
        assert (start.origins["draft"], start.origins["kv"]) == (SettingOrigin.TUNED, SettingOrigin.KEPT)
        assert (start.chosen, start.set_aside) == ({"kv": "q4_0"}, {"draft": 4})
        assert values(await resolve_start("own", use_tuned=False), "draft") == [2]

    async def test_a_kv_cache_type_of_a_fork_is_passed_unchanged(self, own_path: Path) -> None:
        start = await resolve_start(str(own_path), {"kv": "tbq4_0"})
        assert values(start, "kv", "ctx") == ["tbq4_0", 65_536]


@pytest.mark.usefixtures("tuned_values")
class TestKeptSettingsThatNoLongerFit:
    async def test_the_setting_that_does_not_fit_is_named_and_replaced(
        self, own_path: Path, local_situation: list[Situation]
    ) -> None:
        save_model_settings(own_path, {"ctx": 262_144, "draft": 3})
        start = await resolve_start("own")
        assert values(start, "ctx", "draft") == [262_144, 3]
        assert not start.notices
        local_situation[0] = this_computer(8)
        start = await resolve_start("own")
        assert start.plan is not None
        assert start.plan.status is not Status.TOO_BIG
        assert values(start, "draft") == [3]
        context = start.options.context
        assert context == start.plan.setting.context < 262_144
        (notice,) = start.notices
        assert notice.code == KEPT_REPLACED
        assert notice.text == f"Your last settings do not fit into memory now: ctx 262144. Used instead: ctx {context}."
        assert (start.chosen, start.set_aside) == ({"draft": 3}, {"ctx": 262_144})
        assert values(await resolve_start("own", {"ctx": 4_096}), "ctx") == [4_096]

    async def test_a_prompt_cache_that_does_not_fit_into_the_host_is_replaced(
        self, own_path: Path, local_situation: list[Situation]
    ) -> None:
        save_model_settings(own_path, {"cache_ram": 6_000, "draft": 3})
        assert (await resolve_start("own")).options.cache_ram == 6_000
        local_situation[0] = replace(this_computer(), host_mib=4_096)
        start = await resolve_start("own")
        assert values(start, "draft") == [3]
        assert start.options.cache_ram is None  # the launch chooses a limit that fits
        assert (start.chosen, start.set_aside) == ({"draft": 3}, {"cache_ram": 6_000})
        assert "cache-ram 6000" in start.notices[0].text

    async def test_kept_settings_stay_where_nothing_fits(
        self, own_path: Path, local_situation: list[Situation]
    ) -> None:
        save_model_settings(own_path, {"ctx": 16_384})
        local_situation[0] = this_computer(2)
        start = await resolve_start("own")
        assert start.plan is not None
        assert start.plan.status is Status.TOO_BIG
        assert (values(start, "ctx"), start.chosen, start.notices) == ([16_384], {"ctx": 16_384}, ())

    async def test_settings_that_the_engine_lacks_are_replaced(
        self, own_path: Path, local_situation: list[Situation]
    ) -> None:
        del local_situation
        save_model_settings(own_path, {"kv": "tbq4_0"})
        start = await resolve_start(str(own_path), make_options=lambda path: ServeOptions(path, built_in=True))
        assert values(start, "kv") == ["q8_0"]
        text = "Your last settings do not work with this file and engine: kv tbq4_0."
        assert [notice.text for notice in start.notices] == [text]
        assert start.set_aside == {"kv": "tbq4_0"}

    async def test_an_expert_cache_is_not_passed_to_an_engine_without_one(
        self, own_path: Path, local_situation: list[Situation], tuned_values: dict[str, int | str], tmp_path: Path
    ) -> None:
        del local_situation
        engine = engines.llama_server(tmp_path, engines.TestInstalledEngine.FLAGS)
        make_options = partial(ServeOptions, engine=engine)
        save_model_settings(own_path, {"moe_cache_mib": 1_024, "draft": 3})
        start = await resolve_start(str(own_path), make_options=make_options)
        assert values(start, "moe_cache_mib", "draft") == [None, 3]
        text = "Your last settings do not work with this file and engine: moe-cache-mib 1024."
        assert [notice.text for notice in start.notices] == [text]
        assert start.set_aside == {"moe_cache_mib": 1_024}
        save_model_settings(own_path, {})
        tuned_values |= {"moe_cache_mib": 1_024}
        assert values(await resolve_start(str(own_path), make_options=make_options), "moe_cache_mib") == [None]

    async def test_a_card_that_shows_the_plan_sets_kept_settings_aside(self, own_path: Path) -> None:
        save_model_settings(own_path, {"ctx": 262_144})
        criteria, situation = PlanCriteria(model="own"), this_computer(8)
        plans = make_plans(load_catalogue(), situation, criteria)
        _, (kept,) = await apply_own_settings(plans[:1], load_catalogue(), situation, criteria)
        assert kept.kept_plan is None
        start = await resolve_requested_start(make_first_start_request(kept.planned, kept))
        assert (start.chosen, start.set_aside) == ({}, {"ctx": 262_144})
        assert [notice.code for notice in start.notices] == [KEPT_REPLACED]

    async def test_kept_settings_equal_to_the_tune_are_set_aside_without_a_notice(
        self, own_path: Path, tuned_values: dict[str, int | str]
    ) -> None:
        tuned_values |= {"draft": 4}
        save_model_settings(own_path, {"draft": 4})
        criteria = PlanCriteria(model="own")
        plans = make_plans(load_catalogue(), this_computer(), criteria)
        (plan,), (kept,) = await apply_own_settings(plans[:1], load_catalogue(), this_computer(), criteria)
        start = await resolve_requested_start(make_first_start_request(plan, replace(kept, planned=plan)))
        assert values(start, "draft") == [4]
        assert (start.chosen, start.set_aside, start.notices) == ({}, {"draft": 4}, ())

    async def test_a_first_start_can_ignore_the_tune_of_a_file(
        self, unlisted_path: Path, tuned_values: dict[str, int | str]
    ) -> None:
        tuned_values |= {"draft": 4}
        drafts = [
            (await resolve_requested_start(FirstStartRequest(str(unlisted_path), use_tuned=use))).options.draft
            for use in (True, False)
        ]
        assert drafts == [4, 2]

    async def test_a_plan_with_kept_settings_names_its_own_memory(self, demo_model: Path, tmp_path: Path) -> None:
        only = tmp_path / "only.gguf"
        shutil.copy(demo_model, only)
        selection = select_model(str(only), load_catalogue())
        save_model_settings(only, {"ctx": 131_072})
        plan = await plan_for_start(selection, this_computer())
        assert plan is not None
        assert plan.setting.context == 131_072
        assert f"needs {plan.required_mib:,} of" in plan.reasons[0]

    async def test_the_user_can_start_the_plan_in_place_of_the_kept_settings(self, own_path: Path) -> None:
        save_model_settings(own_path, {"draft": 3})
        criteria = PlanCriteria(model="own")
        plans = make_plans(load_catalogue(), this_computer(), criteria)
        _, (kept,) = await apply_own_settings(plans[:1], load_catalogue(), this_computer(), criteria)
        assert kept.kept_plan is not None
        mine, theirs = [
            await resolve_requested_start(make_first_start_request(plan, kept))
            for plan in (kept.kept_plan, kept.planned)
        ]
        assert (mine.chosen, mine.options.draft) == ({"draft": 3}, 3)
        assert (theirs.chosen, theirs.set_aside, theirs.options.draft) == ({}, {}, 2)

    async def test_replaced_settings_stay_kept(self, demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another program may use the memory only temporarily."""
        calls: list[int] = []

        def too_big(*arguments: object) -> object:
            found = resolve_plan(*arguments)  # type: ignore[arg-type]
            calls.append(1)
            return replace(found, kept={"draft": 1}, replaced={"ctx": 4_096})

        monkeypatch.setattr(start_settings, "resolve_plan", too_big)
        save_model_settings(demo_model, {"ctx": 4_096, "draft": 1})
        start = await resolve_start(str(demo_model))
        assert calls
        session = ServerSession()
        try:
            await session.start(
                StartRequest(start.options, chosen=start.chosen, set_aside=start.set_aside, notices=start.notices)
            )
            assert load_model_settings(demo_model) == {"ctx": 4_096, "draft": 1}
        finally:
            await session.stop()


@pytest.mark.usefixtures("tuned_values", "local_situation")
class TestFilesBesideTheModel:
    async def test_a_projector_is_counted_before_the_context_is_chosen(
        self, unlisted_path: Path, local_situation: list[Situation]
    ) -> None:
        local_situation[0] = this_computer(12)
        projector = unlisted_path.with_name("mmproj.gguf")
        projector.write_bytes(bytes(2**20))
        os.truncate(projector, 900 * 2**20)
        alone = await resolve_start(str(unlisted_path))
        start = await resolve_start(str(unlisted_path), make_options=lambda path: ServeOptions(path, mmproj=projector))
        assert start.plan is not None
        assert start.plan.setting.mmproj_bytes == 900 * 2**20
        assert start.plan.status is not Status.TOO_BIG
        assert alone.plan is not None
        assert start.plan.estimate.parts.kv < alone.plan.estimate.parts.kv, "a shorter context, or a smaller KV type"
        assert plan_settings_of(start.options, "cuda").mmproj_bytes == 900 * 2**20

    async def test_ngram_drafts_work_without_a_head(self, home: Path) -> None:
        path = add_own_model(home, make_sparse_model("qwen35-9b-q4_k_m-nomtp"))
        entry = home / "config" / "models" / "own.toml"
        entry.write_text(entry.read_text().replace("'mtp'", "'ngram-mod'"))
        start = await resolve_start("own", {"draft": 2})
        assert (start.options.spec_type, start.options.draft) == ("ngram-mod", 2)
        assert start.plan is not None
        assert start.plan.setting.drafter.source == "text"
        planned = options_for_plan(start.plan)
        assert (planned.spec_type, planned.draft) == ("ngram-mod", 2)
        check_model(replace(start.options, model=path))


@pytest.mark.usefixtures("tuned_values", "local_situation")
class TestFileWithoutHead:
    async def test_a_file_without_a_head_starts_with_mtp_off_and_a_note(self, headless_model: Path) -> None:
        start = await resolve_start(str(headless_model))
        assert values(start, "draft") == [0]
        (notice,) = start.notices
        assert notice.code == NO_HEAD
        assert notice.text == "headless.gguf has no MTP head, so MTP is off."
        assert start.chosen == {}

    async def test_drafts_on_the_command_line_are_refused(self, headless_model: Path) -> None:
        refused, session = await resolve_start(str(headless_model), {"draft": 3}), ServerSession()
        with pytest.raises(ModelHasNoHead) as error:
            await session.start(StartRequest(refused.options, chosen=refused.chosen))
        assert error.value.actions  # the window shows buttons for the error's actions
        await session.stop()
        start = await resolve_start(str(headless_model), {"draft": 0})
        assert start.notices == ()  # no notice is needed, because the user chose this

    async def test_kept_drafts_are_replaced(self, headless_model: Path, tuned_values: dict[str, int | str]) -> None:
        tuned_values |= {"draft": 4}
        save_model_settings(headless_model, {"draft": 3})
        start = await resolve_start(str(headless_model))
        assert values(start, "draft") == [0]
        assert [notice.code for notice in start.notices] == [NO_HEAD, KEPT_REPLACED]

    async def test_a_file_whose_head_only_the_catalogue_promises_starts_with_mtp_off(self, home: Path) -> None:
        add_own_model(home, make_sparse_model("qwen35-9b-q4_k_m-nomtp"))
        start = await resolve_start("own")
        assert values(start, "draft", "ctx") == [0, 65_536]
        assert [notice.code for notice in start.notices] == [NO_HEAD]


async def test_a_model_without_a_formula_has_the_documented_context(
    tmp_path: Path, local_situation: list[Situation]
) -> None:
    del local_situation
    whole = make_sparse_model("llama-8b-q4_k")
    for trained, context in ((131_072, 32_768), (2_048, 2_048)):
        path = tmp_path / f"latent-{trained}.gguf"
        metadata = {**whole.metadata, "attention.kv_lora_rank": 512, "context_length": trained}
        write(path, "Latent", Model(whole.architecture, metadata, whole.tensors))
        start = await resolve_start(str(path))
        assert (start.plan, start.options.context) == (None, context)
    save_model_settings(path, {"ctx": 1_024})
    start = await resolve_start(str(path))
    assert (start.options.context, start.origins["ctx"]) == (1_024, SettingOrigin.KEPT)


async def test_a_file_with_the_name_of_another_model_of_the_catalogue_is_not_started(demo_model: Path) -> None:
    nine = next(entry for entry in shipped_models() if entry.id == "qwen3.5-9b-mtp")
    file = nine.file("Q4_K_M")
    assert file is not None
    assert nine.repo is not None
    path = models_dir() / nine.repo / file.file
    path.parent.mkdir(parents=True)
    shutil.copy(demo_model, path)
    store_record(
        Record(paths=(path,), bytes=path.stat().st_size, model=nine.id, quant="Q4_K_M", repo=nine.repo, file=file.file)
    )
    for named in ("qwen3.5-9b-mtp:Q4_K_M", "qwen3.5-9b-mtp", f"{nine.repo}:{file.file}"):
        with pytest.raises(ModelUnexpected, match="its architecture is qwen35moe in place of qwen35"):
            await resolve_start(named)
    start = await resolve_start(str(path))  # the file itself is a valid model
    assert start.options.model == path


class TestPlansWithKeptSettings:
    def kept(
        self, settings: Settings, path: Path, situation: Situation | None = None
    ) -> tuple[list[Plan], list[KeptPlan]]:
        save_model_settings(path, settings)
        situation = situation or this_computer()
        catalogue = load_catalogue()
        plans = make_plans(catalogue, situation, CRITERIA)
        found = asyncio.run(apply_own_settings(plans, catalogue, situation, CRITERIA))
        assert found[0] == plans
        return list(found[0]), list(found[1])

    def test_settings_of_the_user_change_the_plan_with_all_consequences(self, own_path: Path) -> None:
        (plan, *_), (found,) = self.kept({"ctx": 32_768, "draft": 4, "kv": "q8_0", "threads": 3}, own_path)
        assert found.planned == plan
        assert found.settings == {"ctx": 32_768, "draft": 4, "threads": 3}
        assert found.planned_settings == {"ctx": plan.setting.context, "draft": plan.setting.draft, "threads": None}
        assert found.kept_plan is not None
        assert (found.kept_plan.setting.context, found.kept_plan.setting.draft, found.kept_plan.setting.threads) == (
            32_768,
            4,
            3,
        )
        assert found.kept_plan.required_mib < plan.required_mib
        assert found.kept_plan.reasons[0] == plan.reasons[0]
        assert found.is_kept_plan(found.kept_plan)
        assert not found.is_kept_plan(plan)

    def test_kept_settings_that_no_longer_fit_are_reported_and_the_rest_is_used(self, own_path: Path) -> None:
        plans, (found,) = self.kept({"ctx": 262_144, "draft": 3}, own_path, this_computer(8.0))
        assert found.kept_plan is not None
        assert found.kept_plan.setting.draft == 3
        assert (found.kept, found.replaced) == ({"draft": 3}, {"ctx": 262_144})
        assert found.settings["ctx"] == 262_144
        assert not found.is_kept_plan(plans[0])

    def test_the_plan_is_used_where_no_kept_settings_fit(self, own_path: Path) -> None:
        plans, (found,) = self.kept({"ctx": 262_144}, own_path, this_computer(8.0))
        assert (found.kept_plan, found.replaced) == (None, {"ctx": 262_144})
        assert not found.is_kept_plan(plans[0])

    def test_kept_settings_equal_to_the_plan_are_still_the_users(self, own_path: Path) -> None:
        assert self.kept({}, own_path)[1] == []
        (plan, *_), _ = self.kept({}, own_path)
        setting = plan.setting
        same: Settings = {"ctx": setting.context, "draft": setting.draft, "kv": setting.kv, "slots": 1}
        (found,) = self.kept(same, own_path)[1]
        assert (found.settings, found.kept) == ({}, same)

    async def test_plans_for_described_machines_and_published_runs_ignore_kept_settings(self, own_path: Path) -> None:
        save_model_settings(own_path, {"ctx": 32_768})
        catalogue, other = load_catalogue(), describe_machine(24.0, backend="cuda")
        plans = make_plans(catalogue, this_computer(), CRITERIA)
        assert await apply_own_settings(plans, catalogue, other, CRITERIA) == (plans, ())
        published = replace(CRITERIA, intent="as-published")
        assert await apply_own_settings(plans, catalogue, this_computer(), published) == (plans, ())

    async def test_a_missing_model_has_no_kept_settings(self, own_path: Path) -> None:
        save_model_settings(own_path, {"ctx": 32_768})
        catalogue, criteria = load_catalogue(), PlanCriteria(model="qwen3.6-35b-a3b-mtp")
        plans = make_plans(catalogue, this_computer(), criteria)
        assert await apply_own_settings(plans, catalogue, this_computer(), criteria) == (plans, ())


def test_a_preset_that_does_not_fit_is_dropped_before_settings_of_the_user(own_path: Path) -> None:
    catalogue = load_catalogue()
    assert own_path.exists()
    settings = OwnSettings(kept={"ctx": 131_072}, tuned={"ubatch": 16_384})
    resolved = resolve_plan(catalogue, this_computer(12), replace(CRITERIA, quant="Q"), settings)
    assert (resolved.kept, resolved.tuned, resolved.replaced) == ({"ctx": 131_072}, {}, {})


@pytest.mark.usefixtures("local_situation")
class TestVision:
    async def test_a_projector_beside_the_model_is_loaded_and_counted(self, unlisted_path: Path) -> None:
        beside = projector(unlisted_path.with_name("mmproj-nine.gguf"), 4_096)
        projector(unlisted_path.with_name("mmproj-other.gguf"), 5_120)
        start = await resolve_start(str(unlisted_path), vision=True)
        assert start.options.mmproj == beside
        assert start.plan is not None
        assert start.plan.estimate.parts.mmproj > beside.stat().st_size
        assert (await resolve_start(str(unlisted_path))).options.mmproj is None

    async def test_a_missing_projector_is_named(self, unlisted_path: Path) -> None:
        with pytest.raises(ModelMissing, match="No vision projector was found"):
            await resolve_start(str(unlisted_path), vision=True)

    async def test_the_projector_of_the_catalogue_is_loaded_or_offered_for_download(
        self, home: Path, tmp_path: Path
    ) -> None:
        path = add_own_model(home, make_sparse_model("qwen35-9b-q4_k_m"))
        file = home / "config" / "models" / "own.toml"
        text = file.read_text()
        file.write_text(text.replace("[[models]]", f'[[models]]\nmmproj = [{{ file = "{tmp_path}/sight.gguf" }}]', 1))
        store_record(Record(paths=(path,), bytes=path.stat().st_size, model="own", quant="Q"))
        with pytest.raises(ModelMissing, match="No vision projector was found"):
            await resolve_start("own", vision=True)
        sight = projector(tmp_path / "sight.gguf", 4_096)
        assert (await resolve_start("own", vision=True)).options.mmproj == sight
