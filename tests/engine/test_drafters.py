"""Drafts in files of their own, with the layouts of llama.cpp, served by the real built-in engine."""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.app.planning.model_source import ModelSource, estimate_by_formula
from launcher.app.planning.named_plans import select_named
from launcher.app.planning.planner import options_for_plan, settings_for_model
from launcher.app.planning.preview import Previewer, read_basis
from launcher.app.planning.start_settings import (
    OwnSettings,
    ResolvedStart,
    make_unresolved_options,
    resolve_plan,
    resolve_start,
    start_planned,
)
from launcher.app.serving.session import ServerSession
from launcher.base.action import ActionKind
from launcher.base.errors import ModelHasNoHead, ModelUnexpected
from launcher.base.paths import shipped_file
from launcher.engine.diagnosis.fixes import attach_fixes
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import check_model, plan_settings_of, prepare_launch, read_draft_file
from launcher.engine.server.start_request import StartRequest
from launcher.engine.settings import launched_settings, load_model_settings, save_model_settings
from launcher.machine.cards import find_card
from launcher.models import evidence
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.compute_buffers import ComputeSetting, draft_model_buffers
from launcher.models.drafters import DRAFTERS, SPEC_TYPES, choice_in, find_drafter
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model
from launcher.models.locate import add_draft, select_file
from launcher.models.memory import MemoryEstimate, PlanSettings, estimate_memory
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.situation import describe_machine
from launcher.models.weights import read_weights
from tests.engine.test_supervisor import supervise_server
from tests.gateway.test_handover import change_settings, serve_model
from tools.demo_model.drafts import DraftKind, write_draft

KINDS: dict[str, DraftKind] = {
    "draft-simple": "model",
    "draft-eagle3": "eagle3",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}
_BUFFER = re.compile(r"(\w+): +\S+ (?:model |KV |RS |output |compute )?buffer size = +([\d.]+) MiB")
QUESTION = ChatRequest([{"role": "user", "content": "What is a draft?"}], max_tokens=48, temperature=0.0)


@pytest.fixture(scope="session")
def drafted(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with a draft of each kind beside it; the small one is called so that nothing says what it is."""
    folder = tmp_path_factory.mktemp("drafted")
    model = folder / "demo.gguf"
    shutil.copy(demo_model, model)
    for kind in KINDS.values():
        write_draft(folder / ("small.gguf" if kind == "model" else f"{kind}-demo.gguf"), kind, demo_model)
    return model


def start(model: Path, spec_type: str | None = None, draft: Path | None = None) -> ServeOptions:
    found = make_unresolved_options(
        str(model), lambda path: ServeOptions(path, built_in=True, threads=1, draft_file=draft)
    )
    return replace(found, context=4_096, chosen_drafter=spec_type)


def add_buffers(lines: list[str]) -> float:
    """Return the MiB of an engine's buffers. Each of its two contexts names its compute buffer anew when it grows."""
    sizes = [(each[1], float(each[2])) for each in map(_BUFFER.search, lines) if each]
    compute = [mib for name, mib in sizes if name == "sched_reserve"]
    return sum(mib for name, mib in sizes if name != "sched_reserve") + sum(compute[-2:])


_COMPUTE = re.compile(r"sched_reserve: +CPU compute buffer size = +([\d.]+) MiB")
_STATES = re.compile(r"RS buffer size = +([\d.]+) MiB")
_KEPT = re.compile(r"KV buffer size = +([\d.]+) MiB")


@dataclass(frozen=True)
class Said:
    """MiB of an engine's buffers: of the target and of the draft."""

    kv: tuple[float, ...]
    recurrent: float
    compute: tuple[float, ...]


async def start_and_read(options: ServeOptions) -> Said:
    """Start an engine, ask it one question, and return what it says of its buffers."""
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        assert watched.supervisor.client is not None
        async with watched.supervisor.client.chat(replace(QUESTION, max_tokens=4)) as deltas:
            async for _ in deltas:
                pass
        lines = watched.supervisor.log.last_lines()

    def find(pattern: re.Pattern[str]) -> tuple[float, ...]:
        return tuple(float(found[1]) for found in map(pattern.search, lines) if found)

    return Said(find(_KEPT), sum(find(_STATES)), find(_COMPUTE))


def estimate(options: ServeOptions) -> MemoryEstimate:
    assert options.model is not None
    header = read_model(options.model)
    geometry, draft = read_geometry(header), read_draft_file(options.used_draft_file)
    return estimate_memory(geometry, read_weights(header, geometry), plan_settings_of(options, "cpu"), draft)


@pytest.mark.parametrize(
    ("width", "changes"),
    [
        (96, {}),
        (256, {"context": 8_192, "draft": 5}),
        (384, {"ubatch": 128, "kv": "q8_0", "draft": 3}),
        (160, {"slots": 2, "context": 16_384, "kv": "q4_0"}),
    ],
)
async def test_the_memory_of_a_small_model_is_the_engines(
    demo_model: Path, home: Path, tmp_path: Path, width: int, changes: dict[str, Any]
) -> None:
    """Whatever its width: buffers, and the states of a hybrid model, which the engine keeps once for each slot."""
    model, small = tmp_path / "demo.gguf", tmp_path / "small.gguf"
    shutil.copy(demo_model, model)
    write_draft(small, "model", demo_model, hidden=width)
    options = replace(start(model, "draft-simple", small), **changes)
    said, found = await start_and_read(options), estimate(options)
    parts = found.parts
    assert found.exact
    assert said.recurrent == pytest.approx(parts.recurrent / 2**20, abs=0.006)
    assert said.kv == pytest.approx((parts.kv / 2**20, parts.draft_kv / 2**20), abs=0.006)
    assert said.compute == pytest.approx((parts.compute / 2**20, parts.draft_compute / 2**20), abs=0.006)


@pytest.mark.parametrize(
    ("spec_type", "changes"),
    [
        ("draft-eagle3", {}),
        ("draft-eagle3", {"slots": 2, "draft": 1}),
        ("draft-eagle3", {"context": 16_384, "ubatch": 256, "draft": 5}),
        ("draft-dflash", {"draft": 6, "context": 8_192}),
        ("draft-dflash", {"context": 32_768, "slots": 3}),
        ("draft-dspark", {"ubatch": 128, "kv": "q8_0"}),
        ("draft-dspark", {"ubatch": 64, "slots": 4, "draft": 7}),
    ],
)
async def test_the_memory_of_a_trained_draft_is_the_engines(
    drafted: Path, home: Path, spec_type: str, changes: dict[str, Any]
) -> None:
    """The inputs of layers stay allocated in the model's buffer; the draft's has logits of all tokens, twice."""
    options = replace(start(drafted, spec_type), **changes)
    said, found = await start_and_read(options), estimate(options)
    parts = found.parts
    assert found.exact
    assert max(said.compute[1:-1]) == pytest.approx(parts.draft_compute / 2**20, abs=0.006)
    assert said.recurrent == pytest.approx(parts.recurrent / 2**20, abs=0.006)
    assert said.kv == pytest.approx((parts.kv / 2**20, parts.draft_kv / 2**20), abs=0.006)
    assert said.compute[-1] == pytest.approx(parts.compute / 2**20, abs=0.006)


@pytest.mark.parametrize(
    ("kind", "outputs", "context", "ubatch", "slots", "on_card", "on_host"),
    [
        ("eagle3", 0, 4_096, 512, 1, 10.01, 5.51),
        ("eagle3", 0, 8_192, 128, 1, 2.94, 2.38),
        ("eagle3", 0, 16_384, 256, 2, 5.88, 4.76),
        ("eagle3", 512, 4_096, 256, 1, 6.01, 2.76),
        ("dflash", 0, 8_192, 512, 1, 10.76, 8.77),
        ("dflash", 0, 32_768, 256, 2, 9.01, 8.38),
        ("dspark", 0, 4_096, 128, 1, 2.70, 1.19),
        ("dspark", 0, 16_384, 64, 4, 1.35, 0.60),
    ],
)
def test_the_buffers_of_a_trained_draft_on_vulkan_are_the_engines(
    demo_model: Path,
    tmp_path: Path,
    kind: DraftKind,
    outputs: int,
    context: int,
    ubatch: int,
    slots: int,
    on_card: float,
    on_host: float,
) -> None:
    """What llama-server b11669 said of the demo's drafts on an emulated card (.ci/fake-gpu)."""
    write_draft(tmp_path / "draft.gguf", kind, demo_model, outputs=outputs)
    draft = read_draft_file(tmp_path / "draft.gguf")
    assert draft is not None
    setting = ComputeSetting("vulkan", context, ubatch, slots, draft=3, quantised=False)
    found = draft_model_buffers(draft.geometry, read_geometry(read_model(demo_model)), setting)
    assert found.exact
    assert (found.draft / 2**20, found.draft_host / 2**20) == pytest.approx((on_card, on_host), abs=0.006)


@pytest.mark.parametrize("changes", [{"ubatch": 256}, {"context": 16_384, "slots": 2, "draft": 4}])
async def test_a_draft_with_words_of_its_own_puts_them_into_the_places_of_all(
    demo_model: Path, home: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = tmp_path / "demo.gguf"
    shutil.copy(demo_model, model)
    write_draft(tmp_path / "eagle3-demo.gguf", "eagle3", demo_model, outputs=512)
    options = replace(start(model, "draft-eagle3"), **changes)
    said, found = await start_and_read(options), estimate(options)
    assert found.exact
    assert max(said.compute[1:-1]) == pytest.approx(found.parts.draft_compute / 2**20, abs=0.006)


@pytest.mark.parametrize(("spec_type", "outputs"), [("ngram-simple", 49), ("ngram-mod", 65), ("ngram-cache", 9)])
async def test_the_rows_of_drafts_from_text_are_the_engines(
    demo_model: Path, home: Path, spec_type: str, outputs: int
) -> None:
    """With four slots, whose rows of logits then take as much as all else."""
    options = replace(start(demo_model, spec_type), draft=2, ubatch=256, slots=4)
    said, found = await start_and_read(options), estimate(options)
    assert find_drafter(spec_type).count_outputs(2) == outputs
    assert said.compute == pytest.approx((found.parts.compute / 2**20,), abs=0.006)


@pytest.mark.parametrize("spec_type", KINDS)
async def test_each_kind_of_draft_is_served(drafted: Path, home: Path, spec_type: str) -> None:
    """The words of the small model and of DSpark's Markov head come from the corpus; the others know nothing."""
    named = drafted.with_name("small.gguf") if spec_type == "draft-simple" else None
    options = start(drafted, spec_type, named)
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        assert watched.supervisor.client is not None
        timings = None
        async with watched.supervisor.client.chat(QUESTION) as deltas:
            async for delta in deltas:
                timings = delta.timings or timings
        used_mib = add_buffers(watched.supervisor.log.last_lines())
    settings = plan_settings_of(options, "cpu")
    header = read_model(drafted)
    geometry = read_geometry(header)
    draft_model = read_draft_file(options.used_draft_file)
    found = estimate_memory(geometry, read_weights(header, geometry), settings, draft_model)
    low_mib, high_mib = ((bound - found.parts.overhead) / 2**20 for bound in (found.low, found.high))
    assert low_mib - 0.05 <= used_mib <= high_mib + 0.05  # the engine rounds each of nine buffers to 0.01
    assert timings is not None
    assert timings.draft_n > 0
    if KINDS[spec_type] in ("model", "dspark"):
        assert timings.draft_n_accepted > 0


def test_the_files_beside_a_model_can_be_chosen_and_a_small_model_only_by_name(drafted: Path, home: Path) -> None:
    options = start(drafted)
    assert options.drafter is DRAFTERS["mtp"]
    assert {each.kind for each in options.other_drafts} == {"eagle3", "dflash", "dspark"}
    assert {each for each in SPEC_TYPES if replace(options, chosen_drafter=each).can_draft(head=True)} >= {
        *("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dflash2", "draft-dspark", "ngram-cache"),
    }
    assert not replace(options, chosen_drafter="draft-simple").can_draft(head=True)
    with pytest.raises(ModelHasNoHead, match="no file for draft-simple beside it"):
        check_model(replace(options, chosen_drafter="draft-simple"))
    named = start(drafted, draft=drafted.with_name("small.gguf"))
    assert named.drafter is DRAFTERS["draft-model"]
    assert replace(named, chosen_drafter="draft-mtp").drafter is DRAFTERS["mtp"]
    speaking = drafted.with_name("demo-DRAFT.gguf")
    shutil.copy(drafted.with_name("small.gguf"), speaking)
    try:
        assert replace(start(drafted), chosen_drafter="draft-simple").used_draft_file == speaking
    finally:
        speaking.unlink()


@pytest.mark.parametrize(
    ("before", "after", "reuses"),
    [
        ("draft-eagle3", "draft-simple", False),
        ("draft-simple", "draft-eagle3", False),
        (None, "draft-simple", False),
        (None, "draft-eagle3", False),
        ("ngram-simple", "draft-eagle3", False),
        ("draft-mtp", "draft-dflash", True),
        ("draft-dspark", "draft-mtp", True),
        ("draft-eagle3", "draft-eagle3", True),
    ],
)
async def test_a_conversation_goes_on_with_another_drafter(
    drafted: Path, home: Path, before: str | None, after: str, reuses: bool
) -> None:
    """A slot is handed over only where the next drafter can go on with it; else the conversation is read again."""
    small = drafted.with_name("a-DRAFT.gguf")
    shutil.copy(drafted.with_name("small.gguf"), small)
    try:

        def choose(spec_type: str | None, length: int) -> dict[str, Any]:
            return {"chosen_drafter": spec_type, "draft": length if spec_type else 0}

        turns = [{"role": "user", "content": "What is a draft? " * 40}]
        async with serve_model(replace(start(drafted), alias="demo", **choose(before, 2))) as (session, client):

            async def ask() -> Mapping[str, Any]:
                body = {"messages": turns, "max_tokens": 24, "temperature": 0}
                reply = await client.post("/v1/chat/completions", json=body)
                assert reply.status_code == 200, reply.text
                return reply.json()  # type: ignore[no-any-return]

            said = (await ask())["choices"][0]["message"]["content"]
            turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
            await change_settings(session, **choose(after, 3))
            timings = (await ask())["timings"]
        assert timings["draft_n"] > 0
        assert (timings["cache_n"] > 0) is reuses
    finally:
        small.unlink()


async def test_who_names_a_drafter_gets_drafts(drafted: Path, home: Path) -> None:
    def built_in(path: Path) -> ServeOptions:
        return ServeOptions(path, built_in=True)

    found = await resolve_start(str(drafted), {"drafter": "draft-dflash"}, built_in)
    assert (found.options.draft, found.options.drafter.name) == (4, "dflash")
    assert found.options.used_draft_file == drafted.with_name("dflash-demo.gguf")
    off = await resolve_start(str(drafted), {"drafter": "draft-dflash", "draft": 0}, built_in)
    assert not off.options.drafter.drafts
    small = drafted.with_name("small.gguf")
    found = await resolve_start(str(drafted), None, lambda path: replace(built_in(path), draft_file=small))
    assert (found.options.draft, found.options.drafter.name, found.options.used_draft_file) == (2, "draft-model", small)


def test_a_plan_takes_the_named_drafter_and_says_what_is_not_known(drafted: Path, home: Path) -> None:
    selection = select_file(drafted, Catalogue(()))
    criteria = PlanCriteria(selection.entry.id, chosen_drafter="draft-eagle3", draft=3)
    (plan,) = make_plans(selection.catalogue, describe_machine(24), criteria)
    assert plan.setting.drafter is DRAFTERS["eagle3"]
    assert plan.setting.draft_bytes == drafted.with_name("eagle3-demo.gguf").stat().st_size
    assert not plan.estimate.exact
    assert any("How much memory EAGLE-3 takes is an estimate" in each for each in plan.cautions)
    (plan,) = make_plans(selection.catalogue, describe_machine(24), PlanCriteria(selection.entry.id))
    assert plan.setting.drafter.name in ("mtp", "none")
    assert plan.estimate.exact


@pytest.fixture
def published(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody published how many drafts of DSpark and MTP are accepted with the demo; of the others nobody did."""
    file = tmp_path / "acceptance.csv"
    known, *_ = shipped_file(*evidence.ACCEPTANCE_FILE).read_text(encoding="utf-8").partition("\nQwen")
    of_demo = "MTP demo,F16,dspark,4,0,code,,0.8,2026-11-01,a test\nMTP demo,F16,mtp,4,0,code,,0.7,2026-11-01,a test\n"
    file.write_text(f"{known}\n{of_demo}", encoding="utf-8")
    monkeypatch.setattr(evidence, "ACCEPTANCE_FILE", (str(file),))
    caches = (evidence.accepted_shares, evidence._acceptance_rows, evidence.read_acceptance)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


@pytest.mark.usefixtures("published")
async def test_a_plan_chooses_the_fastest_drafter_and_it_starts(drafted: Path) -> None:
    """A block costs one pass of its file, so that DSpark gains where the head loses; the plan says what it beat."""
    selection, card = select_file(drafted, Catalogue(())), find_card("RTX 4090", None)
    situation = describe_machine(card.memory_gb, card=card)
    (plan,) = make_plans(selection.catalogue, situation, PlanCriteria(selection.entry.id))
    assert (plan.setting.drafter.name, plan.setting.chosen_drafter) == ("dspark", "draft-dspark")
    assert plan.setting.draft_bytes == drafted.with_name("dspark-demo.gguf").stat().st_size
    assert plan.forecast is not None
    assert plan.forecast.tokens_per_second > plan.forecast.without_mtp
    (chosen,) = [reason for reason in plan.reasons if "Ways to draft, and" in reason]
    rates = r"DSpark with draft \d about \d+, no drafts about \d+, MTP with draft 1 about \d+\."
    assert re.search(f": {rates}$", chosen)
    (unknown,) = [reason for reason in plan.reasons if "no runs with them are known" in reason]
    assert "known: EAGLE-3 (draft-eagle3), DFlash (draft-dflash). To try one, set --drafter;" in unknown
    assert "`mtp-launcher tune` measures how many of its drafts are accepted" in unknown
    assert [way.drafter.name for way in plan.ways] == ["dspark", "none", "mtp", "eagle3", "dflash"]
    planned = options_for_plan(plan)
    assert planned.used_draft_file == drafted.with_name("dspark-demo.gguf")
    start_of = {"kept": {}, "replaced": {}, "same_as_tuned": {}}
    resolved = start_planned(str(drafted), plan.setting, **start_of, make_options=lambda path: start(path))
    assert (resolved.options.drafter, resolved.options.draft) == (plan.setting.drafter, plan.setting.draft)
    session = ServerSession()
    try:
        options = replace(resolved.options, context=4_096, threads=1)
        await session.start(replace(resolved.request, options=options))
        reply = await session.send_request(QUESTION)
        await session.start(StartRequest(replace(options, draft=2), again=True, chosen={"draft": 2}))
    finally:
        await session.stop()
    assert reply.timings is not None
    assert reply.timings.draft_n > 0
    # Else the model's own drafter would have that length at the next start.
    assert load_model_settings(drafted) == {"drafter": "draft-dspark", "draft": 2}


@pytest.mark.usefixtures("published")
def test_a_plan_keeps_the_models_own_drafter_where_the_other_was_not_asked_for(drafted: Path) -> None:
    """A length is that of the own drafter, as kept settings mean it; an engine may lack the other one."""
    selection, card = select_file(drafted, Catalogue(())), find_card("RTX 4090", None)
    here = describe_machine(card.memory_gb, card=card)
    lacking = replace(here, spec_types=here.spec_types - {"draft-dspark"})
    for situation, draft, name in ((here, 3, "mtp"), (lacking, None, "none")):
        criteria = PlanCriteria(selection.entry.id, draft=draft)
        (plan,) = make_plans(selection.catalogue, situation, criteria)
        assert (plan.setting.drafter.name, plan.setting.chosen_drafter) == (name, None)
    on_cpu = describe_machine(24, backend="cpu", host_gib=64)  # of which no speed is forecast
    (plan,) = make_plans(selection.catalogue, on_cpu, PlanCriteria(selection.entry.id))
    assert plan.setting.drafter.name == "mtp"
    (unknown,) = [reason for reason in plan.reasons if "no runs with" in reason]
    assert "known: EAGLE-3 (draft-eagle3), DFlash (draft-dflash). To" in unknown
    own = OwnSettings(kept={"draft": 1})
    resolved = resolve_plan(selection.catalogue, here, PlanCriteria(selection.entry.id), own)
    assert resolved.plan is not None
    assert (resolved.plan.setting.drafter.name, resolved.plan.setting.draft) == ("mtp", 1)


async def test_a_chosen_drafter_whose_file_is_gone_is_no_longer_used(
    demo_model: Path, home: Path, tmp_path: Path
) -> None:
    model, draft = tmp_path / "demo.gguf", tmp_path / "dflash-demo.gguf"
    shutil.copy(demo_model, model)
    write_draft(draft, "dflash", demo_model)
    save_model_settings(model, {"drafter": "draft-dflash", "draft": 6})

    async def resolve() -> ResolvedStart:
        return await resolve_start(str(model), None, lambda path: ServeOptions(path, built_in=True))

    found = (await resolve()).options
    assert (found.drafter.name, found.draft) == ("dflash", 6)
    draft.unlink()
    resolved = await resolve()
    assert resolved.options.drafter.name in ("mtp", "none")
    assert resolved.options.draft < 6
    notices = [f"{notice.text}" for notice in resolved.notices]
    (gone,) = [each for each in notices if "is gone" in each]
    assert gone.startswith(
        "The file of DFlash is gone, so it is not used as before. Start it with another drafter or --draft 0"
    )
    assert not any("draft 6" in each for each in notices)
    assert resolved.set_aside == {"drafter": "draft-dflash", "draft": 6}, "it is used again when the file is back"
    shown = start_planned(
        *(str(model), PlanSettings(context=4_096)),
        kept={},
        replaced={"drafter": "draft-dflash", "draft": 6},
        same_as_tuned={},
        make_options=lambda path: ServeOptions(path, built_in=True),
    )
    assert [f"{notice.text}" for notice in shown.notices] == [gone]
    selection = select_file(model, Catalogue(()))
    own = OwnSettings(kept={"ctx": 2_048, "draft": 6, "drafter": "draft-dflash"})
    planned = resolve_plan(selection.catalogue, describe_machine(24), PlanCriteria(selection.entry.id), own)
    assert (planned.kept, planned.replaced) == ({"ctx": 2_048}, {"draft": 6, "drafter": "draft-dflash"})
    assert planned.plan is not None
    assert planned.plan.setting.draft < 6, "a length of DFlash is none of the head's"


def test_a_draft_that_was_deleted_is_named_with_what_to_do(demo_model: Path, home: Path, tmp_path: Path) -> None:
    """A server that is started again as before, or with other settings, still has it in its options."""
    model, draft = tmp_path / "demo.gguf", tmp_path / "dflash-demo.gguf"
    shutil.copy(demo_model, model)
    write_draft(draft, "dflash", demo_model)
    options = replace(start(model, "draft-dflash"), draft=4)
    check_model(options)
    draft.unlink()
    with pytest.raises(
        ModelHasNoHead, match=r"no file for draft-dflash beside it \(.*dflash-demo\.gguf is gone\)"
    ) as caught:
        check_model(options)
    assert "another drafter or --draft 0, or put its file beside the model" in caught.value.hint
    check_model(replace(options, draft=0))
    attach_fixes(caught.value, options)
    assert [(each.kind, each.label) for each in caught.value.actions] == [
        (ActionKind.DRAFT_OFF, "Start without drafts"),
    ]


async def test_a_draft_that_was_named_is_kept_with_its_length(demo_model: Path, home: Path, tmp_path: Path) -> None:
    """Wherever it lies: else the next start would give its length to the head."""
    model, small = tmp_path / "demo.gguf", tmp_path / "elsewhere" / "small.gguf"
    shutil.copy(demo_model, model)
    small.parent.mkdir()
    write_draft(small, "model", demo_model)

    async def resolve(named: Path | None = None) -> ResolvedStart:
        def make_options(path: Path) -> ServeOptions:
            return ServeOptions(path, built_in=True, threads=1, draft_file=named)

        return await resolve_start(str(model), {"ctx": 4_096, "draft": 3} if named else None, make_options)

    session = ServerSession()
    try:
        await session.start((await resolve(small)).request)
    finally:
        await session.stop()
    assert load_model_settings(model) == {"drafter": "draft-simple", "draft": 3, "ctx": 4_096}
    options = (await resolve()).options
    assert (options.drafter.name, options.draft, options.used_draft_file) == ("draft-model", 3, small)
    assert [each.file for each in select_file(model, Catalogue(())).entry.drafts] == [str(small)], "plans have it, too"
    write_draft(tmp_path / "demo-draft.gguf", "model", demo_model)
    assert (await resolve()).options.used_draft_file == small, "the named one, not the one beside the model"
    (tmp_path / "demo-draft.gguf").unlink()
    small.unlink()
    resolved = await resolve()
    assert resolved.options.draft != 3
    assert any("The file of the draft model is gone" in notice.text for notice in resolved.notices)


@pytest.mark.parametrize("other", ["draft-eagle3", "draft-mtp", "ngram-simple"])
async def test_a_drafter_of_another_kind_than_the_named_file_is_refused(drafted: Path, home: Path, other: str) -> None:
    named = drafted.with_name("dflash-demo.gguf")
    why = f"dflash-demo.gguf cannot draft for MTP demo: it is for draft-dflash, not for {other}"
    with pytest.raises(ModelUnexpected, match=why):
        await resolve_start(str(drafted), {"drafter": other}, lambda path: ServeOptions(path, draft_file=named))
    with pytest.raises(ModelUnexpected, match=why):
        await select_named(str(drafted), Catalogue(()), named, other)
    same = await select_named(str(drafted), Catalogue(()), named, "draft-dflash2")  # its files are of that kind
    assert same.entry.drafter is DRAFTERS["dflash"]


def test_a_draft_beside_a_model_without_a_head_is_not_used_unasked(
    headless_model: Path, home: Path, tmp_path: Path
) -> None:
    model, draft = tmp_path / "plain.gguf", tmp_path / "eagle3-plain.gguf"
    shutil.copy(headless_model, model)
    write_draft(draft, "eagle3", headless_model)
    unasked = make_unresolved_options(str(model), ServeOptions)
    assert (unasked.draft, unasked.spec_type, unasked.draft_file) == (0, "draft-eagle3", draft)
    assert replace(unasked, draft=2).drafter is DRAFTERS["eagle3"]
    selection = select_file(model, Catalogue(()))
    (plan,) = make_plans(selection.catalogue, describe_machine(24), PlanCriteria(selection.entry.id))
    assert plan.setting.draft == 0
    assert any("EAGLE-3 could draft, but no runs with it are known." in reason for reason in plan.reasons)


def test_a_listed_model_without_a_head_has_the_draft_beside_it_for_its_own(
    headless_model: Path, home: Path, tmp_path: Path
) -> None:
    """Else nothing could draft: the list says nothing of the file."""
    model = tmp_path / "plain-Q8_0.gguf"
    shutil.copy(headless_model, model)
    write_draft(tmp_path / "dflash-plain.gguf", "dflash", headless_model)
    listed = ModelFile(quant="Q8_0", file=str(model), size_bytes=model.stat().st_size)
    entry = ModelEntry(id="plain", name="Plain", files=(listed,))
    selection = select_file(model, Catalogue((entry,)))
    assert selection.entry.id == "plain"
    assert (selection.entry.drafter, selection.entry.drafts) == (DRAFTERS["dflash"], ())
    assert selection.catalogue.find("plain") is selection.entry


def test_the_estimate_counts_the_chosen_draft(drafted: Path, home: Path) -> None:
    header = read_model(drafted)
    source = ModelSource(header, ())
    criteria = PlanCriteria(draft=2, chosen_drafter="draft-dspark")
    settings = settings_for_model(header, criteria, describe_machine(24))
    with_draft, without = (estimate_by_formula(source, replace(settings, draft=length)) for length in (2, 0))
    assert with_draft.drafts_counted
    assert with_draft.parts.weights > without.parts.weights
    assert with_draft.parts.draft_kv > 0
    assert with_draft.high - with_draft.low > without.high - without.low


async def test_a_preview_offers_what_the_model_and_the_engine_have(drafted: Path, home: Path) -> None:
    launch = await prepare_launch(start(drafted), Endpoint(20_002, "key"))
    basis = await read_basis(launch)
    offered = basis.slider_values("drafter")
    assert set(offered) == {
        *("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"),
        *("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
    }
    assert basis.unsupported >= {"draft_device", "draft_n_cpu_moe", "draft_ubatch"}
    changed = Previewer(basis).preview({"drafter": "draft-dspark", "draft": 3})
    assert changed.estimate is not None
    assert changed.estimate.drafts_counted
    assert changed.estimate.exact
    named = await prepare_launch(start(drafted, draft=drafted.with_name("small.gguf")), Endpoint(20_002, "key"))
    shown = [choice_in(launched_settings(each)) for each in (launch, named)]
    assert [f"{each.describe(mode=True)}" for each in shown] == [
        "MTP on, draft length 2",
        "the draft model on, draft length 2",
    ]
    own = Previewer(basis).preview({"drafter": "draft-mtp", "draft": 3}).estimate
    assert own is not None
    assert own.exact


def test_a_draft_for_another_model_is_refused_before_the_engine_aborts(drafted: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "eagle3-other.gguf"
    write_draft(wrong, "eagle3", drafted, hidden=512)
    why = "it is for models that are 512 wide, and this one is 384"
    with pytest.raises(ModelUnexpected, match=f"eagle3-other.gguf cannot draft for MTP demo: {why}"):
        add_draft(select_file(drafted, Catalogue(())), wrong)
    options = ServeOptions(drafted, draft=2, draft_file=wrong, spec_type="draft-eagle3")
    with pytest.raises(ModelUnexpected, match=why):
        check_model(options)
    dflash = drafted.with_name("dflash-demo.gguf")
    with pytest.raises(ModelUnexpected, match="it is for draft-dflash"):
        check_model(replace(options, draft_file=dflash))
    unsure = replace(options, draft_file=drafted.with_name("dspark-demo.gguf"), spec_type="draft-dspark", p_min=0.5)
    with pytest.raises(ModelUnexpected, match="it has no confidence head, so that --p-min must be 0"):
        check_model(unsure)


@pytest.mark.parametrize("name", ["eagle3-demo.gguf", "dflash-demo.gguf", "dspark-demo.gguf"])
def test_a_draft_opened_as_a_model_names_its_model(drafted: Path, name: str) -> None:
    with pytest.raises(ModelUnexpected, match=f"{name} is a draft") as caught:
        select_file(drafted.with_name(name), Catalogue(()))
    assert "It drafts for demo.gguf." in caught.value.hint
    assert f"with --drafter draft-{name.partition('-')[0]}" in caught.value.hint
