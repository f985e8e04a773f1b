"""The quality check on the real engine: the demo and its quantised copies, KV cache types, and MTP."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, LlamaFileType

from launcher.app.measuring.quality import prepare_check, run_check
from launcher.app.serving.session import ServerSession
from launcher.base.errors import BadOption
from launcher.engine.serve_options import ServeOptions
from launcher.tuning.quality import QualityRow
from tests.models.tiny_models import write_quantized

SHORT = {"tokens": 100, "fill": 200, "needle": 200}


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    opened = ServerSession()
    yield opened
    await opened.stop()


@pytest.fixture(scope="module")
def four_bits(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with weights of four bits, alone in its folder."""
    path = tmp_path_factory.mktemp("quants") / "toy-Q4_0.gguf"
    write_quantized(demo_model, path, GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0)
    return path


def options(model: Path) -> ServeOptions:
    return ServeOptions(model=model, built_in=True, threads=1, context=4_096, draft=2)


async def test_kv_types_are_judged_against_f16_and_mtp_against_no_mtp(session: ServerSession, demo_model: Path) -> None:
    check = await prepare_check(options(demo_model), "demo", kv_types=("f16", "q8_0", "q4_0"), **SHORT)
    assert check.reference.model == demo_model
    assert (check.reference.kv, check.reference.draft, check.weights_judged) == ("f16", 0, True)
    steps: list[tuple[str, int, int]] = []
    report = await run_check(session, check, lambda *step: steps.append(step))
    assert session.is_idle
    assert report.errors == ()
    rows: dict[tuple[str, int], QualityRow] = {(row.kv, row.drafts.length): row for row in report.rows}
    assert set(rows) == {("q8_0", 0), ("q4_0", 0), ("f16", 2)}
    eight, four, drafted = rows["q8_0", 0], rows["q4_0", 0], rows["f16", 2]
    assert eight.kl is not None
    assert four.kl is not None
    assert 0 < eight.kl < 0.05 < four.kl
    assert four.answer == "beyond"
    assert report.beyond
    assert (drafted.kl, drafted.answer) == (None, "shown")
    assert drafted.greedy_equal == drafted.greedy_replies > 0
    assert eight.needle is None  # the demo model never finds the hidden fact, so it cannot lose it
    assert report.text is not None
    assert (report.text.fill, report.text.positions) == (200, 100)
    assert ("F16, KV q4_0", 100, 100) in steps


async def test_a_fact_is_hidden_at_the_context_length_in_use(demo_model: Path) -> None:
    whole = await prepare_check(options(demo_model), "demo")
    assert whole.needle == round(0.9 * (4_096 - 320))
    halves = await prepare_check(replace(options(demo_model), slots=2), "demo")
    assert halves.needle == round(0.9 * (2_048 - 320))
    long = replace(options(demo_model), context=131_072)
    assert (await prepare_check(long, "demo")).needle == 32_000
    assert (await prepare_check(long, "demo", needle=50_000)).needle == 50_000


@pytest.mark.thorough
async def test_weights_are_judged_against_the_largest_file_of_the_model(
    session: ServerSession, four_bits: Path, demo_model: Path, headless_model: Path
) -> None:
    alone = await prepare_check(options(four_bits), "toy", **SHORT)
    assert alone.reference.model == four_bits
    assert not alone.weights_judged
    report = await run_check(session, replace(alone, candidates=alone.candidates[-1:]))
    assert "not judged, because no larger file" in report.sentence
    assert "of 100 tokens" in report.sentence
    named = await prepare_check(options(four_bits), "toy", kv_types=("f16",), draft=0, against=demo_model, **SHORT)
    (row,) = (await run_check(session, named)).rows
    assert row.answer == "beyond"
    assert (row.quant, row.kv, row.drafts.length) == ("Q4_0", "f16", 0)
    larger = shutil.copy(demo_model, four_bits.with_name("toy-F16.gguf"))
    beside = await prepare_check(options(four_bits), "toy", **SHORT)
    assert (beside.reference.model, beside.reference_quant, beside.weights_judged) == (Path(larger), "F16", True)
    with pytest.raises(BadOption, match="is not the same model"):
        await prepare_check(options(four_bits), "toy", against=headless_model)


async def test_settings_that_fail_to_start_are_reported(session: ServerSession, demo_model: Path) -> None:
    check = await prepare_check(options(demo_model), "demo", kv_types=("q8_0",), draft=0, **SHORT)
    broken = replace(check, reference=replace(check.reference, extra=("--no-such-flag",)))
    report = await run_check(session, broken)
    assert report.rows == ()
    assert [str(error).startswith("F16, KV f16: not judged.") for error in report.errors] == [True]
