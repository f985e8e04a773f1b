"""From settings to llama-server's arguments."""

import pytest

from launcher.base.errors import EngineUnsuitable
from launcher.engine.arguments import LLAMA_SERVER_FLAGS, memory_arguments
from launcher.models.memory import Setting


def line(setting: Setting, **more: str) -> str:
    return " ".join(memory_arguments(setting, LLAMA_SERVER_FLAGS, **more))


def test_what_the_engine_does_by_itself_is_not_spelled_out() -> None:
    assert line(Setting(32_768, draft=0)) == "--ctx-size 32768 --parallel 1 --gpu-layers 99 --flash-attn on"


def test_a_plan_s_arguments() -> None:
    setting = Setting(131_072, "q8_0", draft=2, ubatch=256, slots=2, n_cpu_moe=30)
    assert line(setting) == (
        "--ctx-size 131072 --parallel 2 --gpu-layers 99 --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on"
        " --ubatch-size 256 --n-cpu-moe 30 --spec-type draft-mtp --spec-draft-n-max 2"
    )


def test_a_ubatch_above_the_batch_raises_both() -> None:
    assert "--ubatch-size 2048" in line(Setting(32_768, ubatch=2_048))
    assert "--batch-size" not in line(Setting(32_768, ubatch=2_048))
    assert "--ubatch-size 4096 --batch-size 4096" in line(Setting(32_768, ubatch=4_096))


def test_for_the_processor_no_gpu_is_used() -> None:
    assert (
        line(Setting(32_768, draft=0, backend="cpu")) == "--ctx-size 32768 --parallel 1 --device none --flash-attn on"
    )
    built_in = memory_arguments(Setting(32_768, draft=0, backend="cpu"), LLAMA_SERVER_FLAGS - {"--device"})
    assert built_in == ["--ctx-size", "32768", "--parallel", "1", "--flash-attn", "on"]


def test_a_vision_projector() -> None:
    assert line(Setting(32_768, mmproj_bytes=1), mmproj_file="mm.gguf").endswith(
        "--spec-draft-n-max 2 --mmproj mm.gguf"
    )
    assert "--mmproj" not in line(Setting(32_768, mmproj_bytes=1))


def test_drafts_from_elsewhere() -> None:
    assert line(Setting(32_768), spec_type="ngram-mod").endswith("--flash-attn on --spec-type ngram-mod")
    beside = line(Setting(32_768), spec_type="draft-mtp", draft_file="mtp.gguf")
    assert beside.endswith("--spec-type draft-mtp --spec-draft-n-max 2 --spec-draft-model mtp.gguf")


def test_draft_0_is_no_drafts_and_not_drafts_of_0() -> None:
    assert "--spec" not in line(Setting(32_768, draft=0), spec_type="draft-mtp", draft_file="mtp.gguf")


def test_every_flag_that_a_build_lacks_is_named() -> None:
    setting = Setting(131_072, "q4_0", draft=2, n_cpu_moe=3)
    with pytest.raises(EngineUnsuitable, match="does not know --n-cpu-moe, --spec-type") as lack:
        memory_arguments(setting, LLAMA_SERVER_FLAGS - {"--n-cpu-moe", "--spec-type"})
    assert lack.value.facts["missing"] == ["--n-cpu-moe", "--spec-type"]
    assert memory_arguments(Setting(32_768, draft=0), LLAMA_SERVER_FLAGS - {"--n-cpu-moe", "--spec-type"})


def test_only_what_exists_in_llama_server_is_ever_used() -> None:
    # Flags of older builds and of articles that end a b11434 with "error: invalid argument".
    gone = {"--mtp-draft", "--no-mmap", "--mlock", "--draft", "--draft-max", "--fit-margin", "--draft-ngl"}
    assert not gone & LLAMA_SERVER_FLAGS
    for setting in (Setting(32_768, "q4_0", 3, 4_096, 4, 41), Setting(32_768, backend="cpu")):
        flags = {word for word in memory_arguments(setting, LLAMA_SERVER_FLAGS) if word.startswith("--")}
        assert flags <= LLAMA_SERVER_FLAGS
