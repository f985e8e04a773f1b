"""From settings to an engine's arguments."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import EngineUnsuitable
from launcher.engine.arguments import LLAMA_SERVER, planned_options, server_arguments
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.serve_options import ServeOptions
from launcher.models.memory import PlanSettings

START = ServeOptions(Path("m.gguf"))
HEAD, TAIL = "--model m.gguf ", " --metrics --cors-origins localhost"


def line(setting: PlanSettings, *, gpu: bool = True, start: ServeOptions = START, without: str = "") -> str:
    build = replace(LLAMA_SERVER, flags=LLAMA_SERVER.flags - set(without.split()))
    return " ".join(server_arguments(planned_options(setting, start), build, gpu=gpu))


def test_defaults_of_the_engine_are_left_out() -> None:
    settings = "--ctx-size 32768 --parallel 1 --gpu-layers 99 --flash-attn on"
    assert line(PlanSettings(32_768, draft=0)) == f"{HEAD}{settings}{TAIL}"
    assert line(PlanSettings(32_768, draft=0, cache_ram=8_192, ctx_checkpoints=32, kv_unified=False)) == (
        f"{HEAD}{settings}{TAIL}"
    )


def test_arguments_of_a_plan() -> None:
    setting = PlanSettings(131_072, "q8_0", draft=2, ubatch=256, slots=2, n_cpu_moe=30)
    assert line(setting) == (
        f"{HEAD}--ctx-size 131072 --parallel 2 --gpu-layers 99 --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on"
        f" --ubatch-size 256 --n-cpu-moe 30 --spec-type draft-mtp --spec-draft-n-max 2{TAIL}"
    )


def test_every_other_setting_has_its_flag() -> None:
    setting = PlanSettings(
        8_192,
        threads=3,
        kv_unified=True,
        cache_ram=0,
        ctx_checkpoints=4,
        split_mode="tensor",
        tensor_split="3,1",
        p_min=0.5,
        draft_sampling="probabilistic",
        ngram="ngram-mod",
    )
    words = line(setting)
    for expected in (
        "--threads 3",
        "--kv-unified ",
        "--cache-ram 0",
        "--ctx-checkpoints 4",
        "--split-mode tensor",
        "--tensor-split 3,1",
        "--spec-type draft-mtp,ngram-mod --spec-draft-n-max 2",
        "--spec-draft-p-min 0.5",
        "--spec-draft-sampling probabilistic",
    ):
        assert expected in words


def test_a_ubatch_above_the_batch_raises_both() -> None:
    assert "--ubatch-size 2048" in line(PlanSettings(32_768, ubatch=2_048))
    assert "--batch-size" not in line(PlanSettings(32_768, ubatch=2_048))
    assert "--batch-size 4096" in line(PlanSettings(32_768, ubatch=4_096))
    assert "--ubatch-size 4096" in line(PlanSettings(32_768, ubatch=4_096))


def test_without_a_gpu_no_gpu_options_are_passed_except_to_disable_it() -> None:
    assert (
        line(PlanSettings(32_768, draft=0), gpu=False) == f"{HEAD}--ctx-size 32768 --parallel 1 --flash-attn on{TAIL}"
    )
    kept_from_it = line(PlanSettings(32_768, draft=0), gpu=False, start=replace(START, no_gpu=True))
    assert "--parallel 1 --device none --flash-attn on" in kept_from_it
    built_in = replace(LLAMA_SERVER, name=BUILT_IN, flags=LLAMA_SERVER.flags - {"--device"})
    words = server_arguments(replace(START, context=8_192, no_gpu=True), built_in, gpu=True)
    assert not {"--device", "--gpu-layers"} & set(words)


def test_files_beside_the_model_are_passed() -> None:
    start = replace(START, mmproj=Path("mm.gguf"), chat_template_file=Path("t.jinja"), rpc=("a:1", "b:2"))
    expected = f"--spec-draft-n-max 2 --mmproj mm.gguf --chat-template-file t.jinja --rpc a:1,b:2{TAIL}"
    assert line(PlanSettings(32_768), start=start).endswith(expected)


def test_drafts_of_other_sources_are_passed() -> None:
    repeats = line(PlanSettings(32_768), start=replace(START, spec_type="ngram-mod"))
    assert repeats.endswith(f"--flash-attn on --spec-type ngram-mod{TAIL}")
    beside = line(PlanSettings(32_768), start=replace(START, draft_file=Path("mtp.gguf")))
    assert beside.endswith(f"--spec-type draft-mtp --spec-draft-n-max 2 --spec-draft-model mtp.gguf{TAIL}")


def test_draft_0_passes_no_draft_options() -> None:
    start = replace(START, draft_file=Path("mtp.gguf"))
    assert "--spec" not in line(PlanSettings(32_768, draft=0, p_min=0.5, ngram="ngram-mod"), start=start)


def test_every_flag_missing_in_a_build_is_named() -> None:
    setting = PlanSettings(131_072, "q4_0", draft=2, n_cpu_moe=3)
    with pytest.raises(EngineUnsuitable, match="does not support --n-cpu-moe, --spec-type") as lack:
        line(setting, without="--n-cpu-moe --spec-type")
    assert lack.value.facts["missing"] == ["--n-cpu-moe", "--spec-type"]
    assert line(PlanSettings(32_768, draft=0), without="--n-cpu-moe --spec-type --cors-origins").endswith("--metrics")


def test_only_flags_of_llama_server_are_used() -> None:
    # Flags of older builds and of articles that end a b11434 with "error: invalid argument".
    gone = {"--mtp-draft", "--no-mmap", "--mlock", "--draft", "--draft-max", "--fit-margin", "--draft-ngl"}
    assert not gone & LLAMA_SERVER.flags
    for setting in (PlanSettings(32_768, "q4_0", 3, 4_096, 4, 41), PlanSettings(32_768, backend="cpu")):
        flags = {word for word in line(setting).split() if word.startswith("--")}
        assert flags <= LLAMA_SERVER.flags


def test_extra_arguments_come_last_and_unchanged() -> None:
    assert line(PlanSettings(32_768), start=replace(START, extra=("--jinja", "-x", "1"))).endswith(
        "--cors-origins localhost --jinja -x 1"
    )
