"""The choice of a model's file when the user names none."""

from dataclasses import replace

import pytest

from launcher.base.errors import BadOption, ModelUnknown, NothingFits
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.choice import choose_file
from launcher.models.plan import Status
from launcher.models.situation import describe_machine

CATALOGUE = Catalogue(tuple(shipped_models()))
MTP = CATALOGUE.find("qwen3.6-35b-a3b-mtp")
CARD = describe_machine(24.0, headless=True)
SMALL = describe_machine(2.0, host_gib=4.0)


def test_the_file_of_the_best_plan_is_chosen_with_its_fit() -> None:
    choice = choose_file(CATALOGUE, MTP, None, CARD)
    assert (choice.entry, choice.name) == (MTP, f"qwen3.6-35b-a3b-mtp:{choice.file.quant}")
    assert choice.file.quant.startswith("UD-Q4_K")
    assert choice.plan is not None
    assert choice.why.startswith("FITS, needs 2")
    assert f"context {choice.plan.setting.context:,}, KV {choice.plan.setting.kv}, draft " in choice.why


def test_a_named_file_is_chosen_even_if_it_is_too_big() -> None:
    choice = choose_file(CATALOGUE, MTP, "q8_0", SMALL)
    assert choice.file.quant == "Q8_0"
    assert choice.plan is not None
    assert choice.plan.status is Status.TOO_BIG


def test_no_file_is_chosen_where_nothing_fits() -> None:
    with pytest.raises(NothingFits) as caught:
        choose_file(CATALOGUE, MTP, None, SMALL)
    assert f"{MTP.id}:UD-" in caught.value.hint
    assert caught.value.facts["free_mib"] == SMALL.free_mib


def test_a_single_file_needs_no_plan() -> None:
    model = CATALOGUE.find("gemma-4-31b")
    only = replace(model, geometry=None, files=(model.file("IQ4_XS") or model.files[0],))
    choice = choose_file(Catalogue((only,)), only, None, CARD)
    assert (choice.file.quant, choice.plan) == ("IQ4_XS", None)
    assert "cannot tell whether it fits" in choice.why


def test_without_a_geometry_the_first_preset_decides() -> None:
    shapeless = replace(MTP, geometry=None)
    assert choose_file(Catalogue((shapeless,)), shapeless, None, CARD).file.quant == MTP.presets[0].quant


def test_without_geometry_and_presets_no_file_is_chosen() -> None:
    bare = replace(MTP, geometry=None, presets=())
    for model, situation in ((bare, CARD), (MTP, None)):
        with pytest.raises(BadOption, match="Cannot choose a file") as caught:
            choose_file(Catalogue((model,)), model, None, situation)
        assert "UD-Q3_K_XL" in caught.value.hint
    assert choose_file(CATALOGUE, MTP, "UD-Q3_K_XL", None).file.quant == "UD-Q3_K_XL"


def test_an_unknown_quantisation_is_refused() -> None:
    with pytest.raises(ModelUnknown):
        choose_file(CATALOGUE, MTP, "Q9", CARD)
