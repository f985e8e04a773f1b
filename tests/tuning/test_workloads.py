"""Workloads: the shipped ones are complete, and an invalid file is reported in a sentence."""

import hashlib
import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from launcher.app.serving.serving import serve
from launcher.base.errors import BadOption
from launcher.base.paths import shipped_file
from launcher.engine.serve_options import ServeOptions
from launcher.tuning.sized_prompts import fill_prompts, journal_entries
from launcher.tuning.timed_request import build_request
from launcher.tuning.workloads import (
    DEFAULT_WORKLOAD,
    WorkloadUnusable,
    load_workload,
    load_workloads,
    read_workload_file,
    shipped_workloads,
)

KNOWN = {
    ("code", 1): "e4e3ab7cb258",
    ("prose", 1): "665b6c823982",
    ("reasoning", 1): "011284e2cef7",
    ("extraction", 1): "ddee0f5c8e98",
    ("long", 1): "564d2e33210b",
    ("turns", 1): "336266f28cf7",
    ("mixed", 1): "3dbc413dd5dc",
    ("published", 1): "8e71a8f6d5a8",
}
"""Workloads by name and version, and the beginning of their prompts' SHA-256."""
SMALLEST = 'name = "x"\ntitle = "X"\nversion = 1\nsource = "me"\nprompts = [{ name = "a", text = "Say something." }]\n'


def test_shipped_workloads_are_complete() -> None:
    there = {path.stem for path in shipped_file("resources", "workloads").glob("*.toml")}
    assert {each.name for each in shipped_workloads()} == there
    assert shipped_workloads()[0].name == DEFAULT_WORKLOAD
    for each in shipped_workloads():
        assert each.title
        assert each.about
        assert each.source
        assert all(prompt.messages[-1][0] == "user" for prompt in each.prompts)
        assert not [text for prompt in each.prompts for _, text in prompt.messages if text != text.strip()]
    assert all(prompt.thinking for prompt in load_workload("reasoning").prompts)
    assert len(load_workload("turns").prompts[0].messages) > 3
    assert load_workload("long").sized_tokens == 8_000


def test_changed_prompts_need_a_new_version() -> None:
    journal = "".join(islice(journal_entries(), 200))
    found = {}
    for each in shipped_workloads():
        content = json.dumps([[p.messages, p.tokens, dict(p.sampling), p.thinking, p.size] for p in each.prompts])
        text = content + (journal if each.sized_tokens else "")
        found[each.name, each.version] = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert found == KNOWN, "figures of other prompts are not comparable: raise the version of what was changed"


def test_the_published_workload_has_the_published_settings() -> None:
    run = load_workload("published")
    (prompt,) = run.prompts
    assert (run.rounds, prompt.tokens) == (10, 2_000)
    assert dict(prompt.sampling) == {"temperature": 0.6, "top_k": 20, "min_p": 0.0}
    assert prompt.thinking is False


def test_a_toml_file_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"{SMALLEST}tokens = 40\nsampling = {{ temperature = 0.2 }}\n")
    found = load_workload(str(path))
    assert found == read_workload_file(path)
    (prompt,) = found.prompts
    assert (prompt.messages, prompt.tokens, prompt.size) == ((("user", "Say something."),), 40, None)
    assert prompt.sampling == {"temperature": 0.2}


def test_a_text_file_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("First,\nof two lines.\n\nSecond.")
    found = load_workload(str(path))
    assert (found.name, found.rounds) == ("mine", None)
    assert [prompt.messages[0][1] for prompt in found.prompts] == ["First,\nof two lines.", "Second."]
    assert not any(prompt.sampling for prompt in found.prompts)
    assert len({prompt.name for prompt in found.prompts}) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prompts = 3", "The file has no name. The file has no title.*prompts of the file must be a list."),
        (
            SMALLEST.replace("title =", "titel =") + "colour = 1\ntokens = 'x'\n",
            "no title.*tokens of the file must be a whole number.*unknown key titel.*unknown key colour",
        ),
        (SMALLEST.replace('name = "a", ', ""), "Prompt 1 has no name."),
        (SMALLEST.replace('text = "Say something."', 'text = ""'), "text of prompt 1 must not be empty."),
        (SMALLEST.replace(', text = "Say something."', ""), "either text or messages"),
        (SMALLEST.replace("}]", '}, { name = "a", text = "Again" }]'), "the same name"),
        (SMALLEST + "tokens = 0\n", "tokens"),
        (
            SMALLEST.replace("}]", '}, { name = "a" }, { name = "c", text = "d", size = "big" }]') + "tokens = 0\n",
            "tokens.*size of prompt 3.*Prompt 2: a prompt has either text or messages.*the same name",
        ),
        (
            SMALLEST.replace(' text = "Say something."', ' messages = [{ role = "assistant", content = "" }]'),
            "content of message 1 of prompt 1 must not be empty. Prompt 1: the last message is the user's",
        ),
        (
            SMALLEST + "sampling = { top_k = [1] }\n",
            "not a workload. top_k of the file's sampling must be a number or a",
        ),
        (SMALLEST + "colour = 1\n", "colour"),
        ("name = ", "not valid TOML"),
        ("\xff", "not valid TOML"),
    ],
)
def test_an_invalid_file_is_explained(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(WorkloadUnusable, match=why) as caught:
        read_workload_file(path)
    assert not re.search("Field required|Extra inputs|Value error|Input should", caught.value.title)
    assert "docs/measuring.md" in caught.value.hint


def test_an_unreadable_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(WorkloadUnusable, match="cannot be read"):
        load_workload(str(tmp_path / "none.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkloadUnusable, match="is not UTF-8 text"):
        load_workload(str(tmp_path / "bytes.toml"))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadOption, match="Choose one of code, prose"):
        load_workload("cod")


async def test_a_real_engine_accepts_each_workload_with_its_prompt_sizes(demo_model: Path) -> None:
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=4_096)
    async with serve(options) as session:
        for each in shipped_workloads():
            smaller = [replace(prompt, size=prompt.size and prompt.size // 10) for prompt in each.prompts]
            for prompt in await fill_prompts(smaller, session.supervisor.client):
                reply = await session.send_request(build_request(replace(prompt, tokens=6), seed=1))
                assert reply.timings is not None, prompt.name
                assert reply.timings.predicted_n >= 1, prompt.name
                assert prompt.size in (None, reply.timings.prompt_n), prompt.name
                assert bool(reply.reasoning) is (each.name == "reasoning"), prompt.name


def test_joined_workloads_name_their_prompts_by_workload() -> None:
    joined = load_workloads("code, prose")
    code, prose = load_workload("code"), load_workload("prose")
    assert (joined.name, len(joined.prompts)) == ("code, prose", len(code.prompts) + len(prose.prompts))
    assert list(joined.parts) == ["code", "prose"]
    assert joined.parts["prose"] == tuple(f"prose: {prompt.name}" for prompt in prose.prompts)
    assert [prompt.messages for prompt in joined.prompts] == [each.messages for each in (*code.prompts, *prose.prompts)]
    assert list(load_workloads("all").parts) == ["code", "prose", "reasoning", "extraction"]
    assert load_workloads("code") == code
    with pytest.raises(BadOption, match="poetry is not a workload"):
        load_workloads("code,poetry")
