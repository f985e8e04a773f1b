"""A drafter is one row of its table, from which all its uses follow; the forms of earlier versions go on working."""

import argparse
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from launcher.app.planning.preview import Previewer
from launcher.base.codec import from_json, to_json
from launcher.base.errors import ModelHasNoHead
from launcher.base.messages import message_from_json
from launcher.cli.given_options import given_settings, read_plan_criteria
from launcher.cli.options import plan, serve
from launcher.engine.arguments import LLAMA_SERVER, planned_options, server_arguments
from launcher.engine.serve_options import ServeOptions
from launcher.engine.settings import load_model_settings, parse_settings, save_model_settings
from launcher.gui.cockpit.controls import RestartFields
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.gui.translation import render
from launcher.models.catalogue_load import load_catalogue
from launcher.models.drafters import DRAFTERS, NONE, SPEC_TYPES, DraftChoice, Drafter, find_drafter, usable_drafters
from launcher.models.limits import advise_draft
from launcher.models.memory import PlanSettings
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.server_settings import ROWS, VARIED
from launcher.models.situation import describe_machine
from tests.app.measuring.test_tuner_space import build_space
from tests.app.planning.test_preview import describe_server

MODEL = "qwen3.6-35b-a3b-mtp"


def parse(verb: object, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.configure(parser)  # type: ignore[attr-defined]
    return parser.parse_args(words)


@pytest.mark.usefixtures("qapp")
@pytest.mark.parametrize("row", DRAFTERS.values(), ids=lambda row: row.name)
def test_one_row_makes_an_option_an_argument_memory_a_slider_and_an_axis(row: Drafter) -> None:
    given = given_settings(parse(serve, "m.gguf", "--drafter", row.spec_type, "--draft", "2"))
    assert given == {"drafter": row.spec_type, "draft": 2}
    assert row.spec_type in ROWS["drafter"].help

    own = ServeOptions(Path("m.gguf"), spec_type=row.spec_type)
    if row.source == "file":
        own = replace(own, draft_file=Path("beside.gguf"))
    assert own.drafter is row
    assert replace(own, draft=0).drafter is NONE
    by = "" if row.uses_head else f" by {row.title}"
    assert f"{DraftChoice(row, 2).label()}" == (f"draft 2{by}" if row.takes_length else "drafts from repeats")
    newer = replace(LLAMA_SERVER, spec_types=frozenset(SPEC_TYPES))
    words = " ".join(server_arguments(replace(own, context=8_192), newer, gpu=True))
    assert f"--spec-type {row.spec_type} " in words
    assert ("--spec-draft-n-max 2" in words) == row.takes_length
    assert ("--spec-draft-model beside.gguf" in words) == (row.source == "file")

    basis = replace(describe_server(), drafters=SPEC_TYPES)
    assert row.spec_type in basis.slider_values("drafter")
    with_row = replace(basis, plan_settings=replace(basis.plan_settings, spec_type=row.spec_type))
    assert DraftChoice(row, 4).short_label in [each.short_label for each in with_row.draft_choices]
    assert "drafter" not in RestartFields(SettingsState(Controller())).fields, "the field of drafts requests it"
    assert "drafter" in VARIED
    found = build_space(replace(basis, drafters=("draft-mtp", row.spec_type)), ["drafter"])
    assert (row.spec_type in found.drafters or row.uses_head) == (row.source != "text" or row.tried)


@pytest.mark.parametrize("row", [row for row in DRAFTERS.values() if row.source == "text"], ids=lambda row: row.name)
def test_a_drafter_that_needs_nothing_of_a_model_is_planned_for_any(row: Drafter) -> None:
    criteria = read_plan_criteria(parse(plan, "--model", MODEL, "--drafter", row.spec_type, "--draft", "2"))
    setting = make_plans(load_catalogue(), describe_machine((24,)), criteria)[0].setting
    assert setting.drafter is row
    assert f"{setting.draft_choice.label()}" == "drafts from repeats"
    words = server_arguments(planned_options(setting, ServeOptions(Path("m.gguf"))), LLAMA_SERVER, gpu=True)
    assert row.spec_type in words


def test_another_drafter_is_a_change_of_its_memory() -> None:
    found = Previewer(describe_server()).preview({"drafter": "ngram-mod"})
    assert [(each.name, each.old, each.new) for each in found.changes] == [("drafter", "draft-mtp", "ngram-mod")]
    assert found.estimate is not None
    assert found.estimate.parts.draft_kv == 0
    assert Previewer(describe_server()).preview({"drafter": "draft-mtp"}).changes == ()


def test_a_drafter_without_what_it_needs_is_refused() -> None:
    assert usable_drafters(head=True)[0] == "draft-mtp"
    assert "draft-simple" not in usable_drafters(head=False, files=("mtp-head",))
    assert "draft-simple" in usable_drafters(head=False, files=("model",))
    headless = replace(describe_server(), drafters=usable_drafters(head=False))
    with pytest.raises(ModelHasNoHead):
        Previewer(headless).preview({"draft": 2})
    assert Previewer(headless).preview({"draft": 2, "drafter": "ngram-mod"}).plan_settings.drafter.source == "text"
    criteria = PlanCriteria(MODEL, draft=2, chosen_drafter="draft-simple")
    with pytest.raises(ModelHasNoHead, match="no file for draft-simple") as caught:
        make_plans(load_catalogue(), describe_machine((24,)), criteria)
    assert render(caught.value.title).endswith("has no file for the draft model beside it.")


def test_drafters_whose_files_are_known_have_the_names_of_the_face() -> None:
    entry = load_catalogue().find("qwen3.8-27b")
    hint = advise_draft(DRAFTERS["eagle3"], (entry, entry.files[0]))
    (known,) = re.findall(r"files are known for ([^)]*)", hint)
    (shown,) = re.findall(r"files are known for ([^)]*)", render(hint))
    assert shown == ", ".join(find_drafter(kind).title for kind in known.split(", "))
    crossed = message_from_json(hint, hint.as_json())
    assert render(crossed) == render(hint)


@pytest.mark.parametrize(
    ("words", "length", "drafts"),
    [(["--draft", "3"], 3, True), (["--draft", "0"], 0, False), (["--no-mtp"], 0, False)],
)
def test_the_earlier_options_go_on_working(words: list[str], length: int, drafts: bool) -> None:
    criteria = read_plan_criteria(parse(plan, "--model", MODEL, *words))
    setting = make_plans(load_catalogue(), describe_machine((24,)), criteria)[0].setting
    assert (setting.draft, setting.drafter.drafts, setting.drafter.name) == (
        length,
        drafts,
        "mtp" if drafts else "none",
    )


def test_repeats_besides_the_own_drafter_go_on_working(home: Path) -> None:
    settings = parse_settings({"draft": "3", "ngram": "ngram-simple"})
    assert given_settings(parse(serve, "m.gguf", "--draft", "3", "--ngram", "ngram-simple")) == settings
    save_model_settings(Path("/m.gguf"), settings)
    assert load_model_settings(Path("/m.gguf")) == settings
    options = planned_options(PlanSettings(8_192, draft=3, ngram="ngram-simple"), ServeOptions(Path("m.gguf")))
    words = " ".join(server_arguments(options, LLAMA_SERVER, gpu=True))
    assert "--spec-type draft-mtp,ngram-simple --spec-draft-n-max 3" in words


def test_the_options_of_an_earlier_version_are_read() -> None:
    options = ServeOptions(Path("/m.gguf"), draft=3, spec_type="ngram-mod")
    written = to_json(options)
    assert {field.name for field in fields(ServeOptions)} - written.keys() == set()
    del written["chosen_drafter"], written["other_drafts"]
    assert from_json(ServeOptions, written) == options
    assert from_json(ServeOptions, written).drafter is DRAFTERS["ngram-mod"]
