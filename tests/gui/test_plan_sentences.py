"""All sentences of plans are shown in the language of the window."""

import re
from collections.abc import Iterator

import pytest

from launcher.base.errors import LauncherError
from launcher.gui import translation as words
from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import PlanCriteria, list_unplanned, make_plans
from launcher.models.situation import describe_machine

_NAMES = re.compile(
    r"`[^`]*`|--[\w-]+|\b(?:MTP|KV|GPU|CPU|MiB|GiB|GB|ubatch|token|ngram-mod|Qwen\S*|llama\S*|tokens)\b"
)
_ENGLISH = re.compile(r"\b[a-z]{2,}(?: [a-z]{2,})+\b")


@pytest.fixture(autouse=True)
def chinese() -> Iterator[None]:
    words.choose_language("zh_CN")
    yield
    words.choose_language("en")


@pytest.mark.parametrize("backend", ["cuda", "cpu"])
def test_every_part_of_a_reason_is_translated(backend: str) -> None:
    """Notes of the catalogue and of its sources are quoted as they are."""
    catalogue = load_catalogue()
    quoted = {preset.note for entry in catalogue.models for preset in entry.presets}
    english: dict[str, str] = {}
    for gib in (4, 8, 16, 24, 48):
        here = describe_machine(gib, host_gib=16, backend=backend)  # type: ignore[arg-type]
        for entry in catalogue.models:
            if not entry.presets and gib != 8:  # their reasons differ by model more than by size
                continue
            quoted |= {f"{note.text} Source: {note.source}." for note in entry.quality}
            for criteria in (
                PlanCriteria(entry.id),
                PlanCriteria(entry.id, draft=0, kv="f16", n_cpu_moe=9, slots=2, context=262_144),
            ):
                try:
                    plans, left = make_plans(catalogue, here, criteria), list_unplanned(catalogue, here, criteria)
                except LauncherError:
                    continue
                received = [text for plan in plans for text in (*plan.reasons, *plan.cautions)]
                received += [text for each in left for text in (each.reason, each.remedy)]
                english |= {text: words.render(text) for text in received if text not in quoted}
    assert len(english) > 50
    assert not {text: item for text, item in english.items() if _ENGLISH.search(_NAMES.sub("", item))}
