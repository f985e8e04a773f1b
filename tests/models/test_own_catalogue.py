"""The user's own models and presets: they join the catalogue, and errors name the file, line and field."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.paths import config_dir
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import load_catalogue
from launcher.models.catalogue_schema import find_line

ROOT = Path(__file__).parents[2]

MODEL = """\
[[models]]
id = "mine"
name = "My model"
speculation = "draft-model"
draft = { repo = "someone/small-GGUF", file = "small.gguf" }
files = [
  { quant = "Q4_K_M", file = "mine-Q4_K_M.gguf", size_bytes = 1_000 },
  { quant = "Q8_0", file = "~/mine-Q8_0.gguf" },
]

[[models.presets]]
quant = "Q4_K_M"
ctx = 4096
draft = 4
"""

PRESET = """\
# My card.
[[presets]]
model = "qwen3.6-35b-a3b-mtp"
memory_gb = 16
quant = "UD-IQ3_S"
ctx = 49_152
kv = "q4_0"

[[presets]]
model = "qwen3.6-35b-a3b-mtp"
quant = "UD-Q3_K_M"
ctx = 65_536
source = "a friend"
"""


def write(kind: str, text: str | bytes, name: str = "own.toml") -> Path:
    path = config_dir() / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def only_problem(catalogue: Catalogue) -> tuple[str, int | None, str, str]:
    (problem,) = catalogue.problems
    return problem.file.name, problem.line, problem.field, problem.reason


def test_without_files_of_the_user_there_are_no_problems() -> None:
    assert load_catalogue().problems == ()


def test_a_model_of_the_user_joins_the_catalogue(home: Path) -> None:
    folder = write("models", MODEL).parent
    catalogue = load_catalogue()
    assert catalogue.problems == ()
    mine = catalogue.find("mine")
    assert [file.file for file in mine.files] == [str(folder / "mine-Q4_K_M.gguf"), str(Path.home() / "mine-Q8_0.gguf")]
    assert mine.draft
    assert mine.draft.file == "small.gguf"
    assert mine.presets[0].draft == 4
    assert mine.geometry is None
    assert mine.files[1].size_bytes is None


def test_a_tilde_with_an_unknown_user_is_a_folder_name() -> None:
    folder = write("models", MODEL.replace("~/", "~nobody-of-that-name/")).parent
    expected = folder / "~nobody-of-that-name" / "mine-Q8_0.gguf"
    assert load_catalogue().find("mine").files[1].file == str(expected)


def test_a_model_of_the_user_from_the_hub_keeps_its_file_names() -> None:
    write("models", MODEL.replace('name = "My model"', 'name = "My model"\nrepo = "someone/mine-GGUF"'))
    mine = load_catalogue().find("mine")
    assert (mine.repo, mine.files[0].file) == ("someone/mine-GGUF", "mine-Q4_K_M.gguf")


def test_presets_of_the_user_come_first_and_name_their_source() -> None:
    shipped = load_catalogue().find("qwen3.6-35b-a3b-mtp").presets
    write("presets", PRESET)
    catalogue = load_catalogue()
    assert catalogue.problems == ()
    first, second, *rest = catalogue.find("qwen3.6-35b-a3b-mtp").presets
    assert (first.quant, first.ctx, first.mark, first.source) == ("UD-IQ3_S", 49_152, "guess", "your own, own.toml")
    assert (second.quant, second.source) == ("UD-Q3_K_M", "a friend")
    assert tuple(rest) == shipped


def test_documented_examples_are_valid() -> None:
    text = (ROOT / "docs" / "models.md").read_text("utf-8")
    models, presets = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    write("models", models)
    write("presets", presets)
    catalogue = load_catalogue()
    assert catalogue.problems == ()
    assert catalogue.find("small-draft").draft
    assert catalogue.find("qwen3.6-35b-a3b-mtp").presets[0].note == "leaves room for the browser"


def test_a_preset_of_the_user_may_be_for_a_model_of_the_user() -> None:
    write("models", MODEL)
    write("presets", '[[presets]]\nmodel = "mine"\nquant = "Q8_0"\nctx = 512\n')
    assert [preset.quant for preset in load_catalogue().find("mine").presets] == ["Q8_0", "Q4_K_M"]


MODEL_FAULTS = [
    ('name = "My model"', 'name = "My model', 3, "", "is not valid TOML"),
    ('name = "My model"', "", 1, "models[0].name", "is missing"),
    ('name = "My model"', "name = 7", 3, "models[0].name", "should be a valid string, not 7"),
    ('id = "mine"', 'id = "Mine"', 2, "models[0].id", "should be lower-case letters"),
    ('id = "mine"', 'id = "demo"', 2, "models[0].id", 'the catalogue has a model "demo" already'),
    ("size_bytes = 1_000", 'size_bytes = "big"', 7, "models[0].files[0].size_bytes", 'valid integer, not "big"'),
    ("size_bytes = 1_000", "size_bytes = 0", 7, "models[0].files[0].size_bytes", "greater than or equal to 1, not 0"),
    ("size_bytes = 1_000", "size = 1", 7, "models[0].files[0].size", "is an unknown field"),
    ("size_bytes = 1_000", 'sha256 = "abc"', 7, "models[0].files[0].sha256", "should have at least 64 characters"),
    ("size_bytes = 1_000", f'sha256 = "{"Z" * 64}"', 7, "models[0].files[0].sha256", "lower-case hexadecimal"),
    ('quant = "Q8_0"', 'quant = "q4_k_m"', 8, "models[0].files[1].quant", "q4_k_m occurs twice"),
    ('quant = "Q4_K_M"\n', 'quant = "Q4"\n', 12, "models[0].presets[0].quant", 'mine has no "Q4"'),
    ("ctx = 4096\n", "", 11, "models[0].presets[0].ctx", "is missing"),
    ("draft = 4\n", "draft = 4\nubatsch = 9\n", 15, "models[0].presets[0].ubatsch", "did you mean ubatch?"),
    ("draft = 4\n", "draft = 4\nmark = 'sure'\n", 15, "models[0].presets[0].mark", "'measured', 'derived' or 'guess'"),
    ("draft = 4\n", "draft = 4\nmark = 1979-05-27\n", 15, "models[0].presets[0].mark", 'not "1979-05-27"'),
    ("draft = 4\n", "draft = nan\n", 14, "models[0].presets[0].draft", "should be a"),
    (
        'draft = { repo = "someone/small-GGUF", file = "small.gguf" }\n',
        "",
        1,
        "models[0].draft",
        "needs a draft's file",
    ),
    ('speculation = "draft-model"\n', "", 13, "models[0].presets[0].draft", "should be 0: mine cannot draft"),
    ("draft = {", "mmproj = 5\ndraft = {", 5, "models[0].mmproj", "should be a"),
    ("draft = {", "geometry = 5\ndraft = {", 5, "models[0].geometry", "should be a table"),
    ("draft = {", "native_context = 1024\ndraft = {", 14, "models[0].presets[0].ctx", "more than the 1,024 tokens"),
]


@pytest.mark.parametrize(
    ("text", "instead", "line", "field", "reason"), MODEL_FAULTS, ids=[f[1] or f[0] for f in MODEL_FAULTS]
)
def test_an_error_is_reported_by_line_and_field_and_the_rest_is_loaded(
    text: str, instead: str, line: int, field: str, reason: str
) -> None:
    assert MODEL.count(text) == 1
    write("models", MODEL.replace(text, instead))
    write("models", MODEL.replace('"mine"', '"sound"'), "sound.toml")
    catalogue = load_catalogue()
    name, found_line, found_field, found_reason = only_problem(catalogue)
    assert (name, found_line, found_field) == ("own.toml", line, field)
    assert reason in found_reason
    assert catalogue.find("sound").files
    assert "mine" not in [model.id for model in catalogue.models]
    assert str(catalogue.problems[0]).startswith(f"{catalogue.problems[0].file}:{line}: ")


def test_one_invalid_model_does_not_affect_others() -> None:
    write("models", MODEL.replace('"mine"', '"bad one"') + MODEL)
    catalogue = load_catalogue()
    assert only_problem(catalogue)[:3] == ("own.toml", 2, "models[0].id")
    assert catalogue.find("mine")


def test_of_two_models_with_the_same_id_the_second_is_reported() -> None:
    write("models", MODEL, "a.toml")
    write("models", MODEL, "b.toml")
    assert only_problem(load_catalogue())[:3] == ("b.toml", 2, "models[0].id")


def test_parts_of_a_split_model_must_be_consistent() -> None:
    parts = '[{ file = "a.gguf", size_bytes = 400 }, { file = "b.gguf", size_bytes = 500 }]'
    write("models", MODEL.replace("size_bytes = 1_000", f"size_bytes = 1_000, parts = {parts}"))
    received = {(problem.field, problem.reason) for problem in load_catalogue().problems}
    assert received == {
        ("models[0].files[0].size_bytes", "is not the sum of the parts' sizes"),
        ("models[0].files[0].file", "should be the first part"),
    }


@pytest.mark.parametrize(
    ("text", "instead", "line", "field", "reason"),
    [
        ('"UD-IQ3_S"', '"UD-IQ3S"', 5, "presets[0].quant", "but UD-IQ3_S"),
        ("49_152", "1_000_000", 6, "presets[0].ctx", "is more than the 262,144 tokens"),
        ("memory_gb = 16", "memory_gb = 'much'", 4, "presets[0].memory_gb", 'not "much"'),
        ('model = "qwen3.6-35b-a3b-mtp"\nmemory', "memory", 2, "presets[0].model", "is missing"),
        ('model = "qwen3.6-35b-a3b-mtp"\nmemory', 'model = "qwen"\nmemory', 3, "presets[0].model", 'no model "qwen"'),
    ],
)
def test_only_an_invalid_preset_is_left_out(text: str, instead: str, line: int, field: str, reason: str) -> None:
    write("presets", PRESET.replace(text, instead))
    catalogue = load_catalogue()
    _, found_line, found_field, found_reason = only_problem(catalogue)
    assert (found_line, found_field) == (line, field)
    assert reason in found_reason
    assert catalogue.find("qwen3.6-35b-a3b-mtp").presets[0].quant == "UD-Q3_K_M"


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", None, "is missing"),
        (b"\xff\xfe", None, "is not UTF-8 text"),
        (b"x = " + b"[" * 5000, None, "nested too deeply"),
        (b'[[models]]\nname = """never ends\n', 3, "is not valid TOML"),
        (b"models = 3\n", 1, "should be"),
        (b"models = {}\n", 1, "should be"),
        (b"models = [1, 2]\n", 1, "should be a table, not 1"),
        (b"[model]\n", 1, "did you mean models?"),
    ],
)
def test_an_invalid_file_is_a_problem_and_no_crash(content: bytes, line: int | None, reason: str) -> None:
    write("models", content)
    assert any(problem.line == line and reason in problem.reason for problem in load_catalogue().problems)


def test_a_file_that_cannot_be_read_is_a_problem() -> None:
    (config_dir() / "models" / "folder.toml").mkdir(parents=True)
    assert "cannot be read" in only_problem(load_catalogue())[3]


def test_an_error_in_a_multi_line_text_is_reported_at_its_first_line() -> None:
    text = 'a = 1\n\n# c\nb.c = """\none\ntwo\n"""\nd = [\n  1,\n  [2,\n   3],\n  { e = 4 },\n]\n[f."g h"]\n"i" = 5\n'
    assert find_line(text, ("b", "c")) == 4
    assert find_line(text, ("d",)) == 8
    assert find_line(text, ("d", 0)) == 9
    assert find_line(text, ("d", 1)) == 10
    assert find_line(text, ("d", 1, 1)) == 11
    assert find_line(text, ("d", 2, "e")) == 12
    assert find_line(text, ("f", "g h")) == 14
    assert find_line(text, ("f", "g h", "i")) == 15
    assert find_line(text, ("f", "g h", "missing")) == 14
    assert find_line(text, ("missing",)) is None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_file_of_the_user_leaves_the_shipped_models(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines are lost, doubled, swapped and cut: never a crash, and every problem names a line of the file."""
    lines = (MODEL if data.draw(st.booleans()) else PRESET.replace("presets", "models")).splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(0, len(lines[at])))
        kind = data.draw(st.sampled_from(["lose", "double", "cut", "junk"]))
        junk = data.draw(st.text(alphabet='[]{}=".,#\n0a', max_size=6))
        lines[at : at + 1] = {"lose": [""], "double": [lines[at]] * 2, "cut": [lines[at][:cut]], "junk": [junk]}[kind]
    text = "\n".join(lines)
    config = tmp_path_factory.mktemp("config")
    (config / "models").mkdir()
    (config / "models" / "own.toml").write_text(text, "utf-8", newline="\n")
    catalogue = load_catalogue(config)
    assert [model for model in catalogue.models if model.id != "mine"] == list(
        load_catalogue(tmp_path_factory.getbasetemp() / "no").models
    )
    assert all(problem.line is None or 1 <= problem.line <= text.count("\n") + 1 for problem in catalogue.problems)


GEOMETRY = {
    "architecture": "qwen3moe",
    "layers": 48,
    "mtp_layers": 0,
    "hidden": 2_048,
    "heads": 32,
    "kv_heads": 4,
    "key_length": 128,
    "value_length": 128,
    "attention_layers": 48,
    "conv_kernel": 0,
    "inner_size": 0,
    "state_size": 0,
    "time_step_rank": 0,
    "group_count": 0,
    "experts": 128,
    "experts_used": 8,
    "expert_ffn": 768,
    "ffn": 0,
    "vocabulary": 151_936,
    "trained_context": 40_960,
}


def with_geometry(**changes: int) -> str:
    lines = (f"{key} = {json.dumps(value)}" for key, value in {**GEOMETRY, **changes}.items())
    return MODEL + "\n[models.geometry]\n" + "\n".join(lines) + "\n"


def test_a_geometry_of_the_user_is_read() -> None:
    write("models", with_geometry())
    catalogue = load_catalogue()
    assert not catalogue.problems
    assert catalogue.find("mine").geometry is not None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("experts_used", 0, "should be above 0 in this model"),
        ("experts_used", 129, "should be at most 128"),
        ("experts", -1, "greater than or equal to 0"),
        ("layers", 0, "greater than or equal to 1"),
        ("heads", 0, "greater than or equal to 1"),
        ("hidden", -2_048, "greater than or equal to 1"),
        ("kv_heads", 0, "should be above 0 in this model"),
        ("key_length", 0, "should be above 0 in this model"),
        ("attention_layers", 49, "should be at most the 48 layers"),
        ("window_layers", 50, "should be at most the 48 layers of attention"),
    ],
)
def test_an_impossible_geometry_is_reported_by_line(field: str, value: int, reason: str) -> None:
    text = with_geometry(**{field: value})
    write("models", text)
    problem = load_catalogue().problems[0]
    assert problem.field == f"models[0].geometry.{field}"
    assert problem.line == 1 + text.split("\n").index(f"{field} = {value}")
    assert reason in problem.reason
