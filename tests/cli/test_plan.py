"""`mtp-launcher plan` as a user types it, in separate processes."""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.options.machine_options import BACKENDS, INTENTS
from launcher.models.compute_buffers import Backend
from launcher.models.preset import Intent
from tests import forked
from tests.cli.conftest import add_own_model
from tests.machine.conftest import compile_driver
from tools.sparse_models.models import model

MOE = "qwen3.6-35b-a3b-mtp"
KEYS = {
    "model", "quant", "file", "bytes", "ctx", "kv", "draft", "drafter", "ubatch", "n_cpu_moe", "slots", "status",
    "required_mib", "parts", "free_mib", "margin_mib", "reasons", "evidence", "acceptance", "argv",
}  # fmt: skip
PARTS = {
    "weights", "kv", "recurrent", "draft_kv", "compute", "draft_compute", "staging", "overhead", "mmproj",
    "caches", "pool",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("no_engine_here")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run("plan", *arguments, env=os.environ | environment)


def answer(*arguments: str, code: int = 0, extra: Sequence[str] = (), **environment: str) -> dict[str, Any]:
    result = run(*arguments, "--json", *(["--", *extra] if extra else []), **environment)
    assert result.returncode == code, result.stderr + result.stdout
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def first_plan(*arguments: str, extra: Sequence[str] = (), **environment: str) -> dict[str, Any]:
    plan: dict[str, Any] = answer(*arguments, extra=extra, **environment)["plans"][0]
    return plan


class TestJson:
    def test_plan_json_has_its_documented_keys(self) -> None:
        result = answer("--gpu-memory", "24")
        assert result["plans"]
        for plan in result["plans"]:
            assert plan.keys() >= KEYS
            assert plan["parts"].keys() == PARTS
            assert plan["required_mib"] == pytest.approx(sum(plan["parts"].values()), abs=1.5)
            assert plan["status"] in {"FITS", "TIGHT", "OFFLOADS", "TOO BIG"}
            assert all(isinstance(text, str) and text for text in plan["reasons"] + plan["evidence"] + plan["argv"])

    def test_the_default_for_24_gb(self) -> None:
        plan = first_plan("--gpu-memory", "24")
        known = {name: plan[name] for name in ("model", "quant", "ctx", "kv", "draft", "ubatch", "n_cpu_moe", "slots")}
        assert known == {
            "model": MOE, "quant": "UD-IQ4_NL", "ctx": 131_072, "kv": "f16", "draft": 2, "ubatch": 512,
            "n_cpu_moe": 0, "slots": 1,
        }  # fmt: skip
        assert (plan["file"], plan["bytes"]) == ("Qwen3.6-35B-A3B-UD-IQ4_NL.gguf", 18_536_192_288)
        assert (plan["status"], plan["drafter"]) == ("FITS", "draft-mtp")
        assert plan["required_mib"] == pytest.approx(20_945, rel=0.01)
        assert plan["argv"] == shlex.split(
            "llama-server --model Qwen3.6-35B-A3B-UD-IQ4_NL.gguf --ctx-size 131072 --parallel 1 --gpu-layers 99"
            " --flash-attn on"
            " --spec-type draft-mtp --spec-draft-n-max 2 --metrics --cors-origins localhost"
        )
        assert plan["env"] == {}  # the engine of another computer is unknown

    def test_unknown_values_are_null(self) -> None:
        result = answer("--gpu-memory", "80", "--model", "gpt-oss-120b")
        assert result["machine"]["host_mib"] is None
        assert result["machine"]["gpu"] is None
        plan = result["plans"][0]
        assert (plan["sha256"], plan["nearest_tokens_per_second"]) == (None, None)
        assert plan["evidence"] == []
        unknown = answer("--gpu-memory", "64")["plans"][0]  # no card of this size is known
        assert (unknown["limit_tokens_per_second"], unknown["expected"]) == (None, None)
        assert unknown["expected_unknown"] == "The speed of this GPU is not known."

    def test_a_plan_that_is_too_big_has_a_forecast_or_the_reason_why_not(self) -> None:
        words = ("--model", "qwen3.6-27b-mtp", "--quant", "Q8_0")
        plan = answer(*words, "--gpu", "RTX 4060", "--host-memory", "16", code=1)["plans"][0]
        assert (plan["status"], plan["expected_unknown"]) == ("TOO BIG", None)
        assert plan["expected"]["tokens_per_second"] > 0
        plan = answer(*words, "--backend", "cpu", "--host-memory", "16", code=1)["plans"][0]
        assert (plan["status"], plan["expected"]) == ("TOO BIG", None)
        assert "processor" in plan["expected_unknown"]

    def test_the_expected_speed_has_a_range(self) -> None:
        plan = first_plan("--gpu", "RTX 3090")
        expected = plan["expected"]
        assert expected["low"] < expected["tokens_per_second"] < expected["high"]
        assert expected["without_mtp"] < expected["tokens_per_second"]
        without = first_plan("--gpu", "RTX 3090", "--no-mtp", "--quant", plan["quant"])["expected"]
        assert without["without_mtp"] == without["tokens_per_second"] == expected["without_mtp"]

    @pytest.mark.thorough
    def test_typical_cards_are_named(self) -> None:
        assert answer("--gpu", "5060 ti 8GB")["machine"]["gpu"] == "NVIDIA GeForce RTX 5060 Ti"
        pair = answer("--gpu-memory", "24+12")["machine"]
        assert (pair["gpus"], pair["cards"]) == (2, ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3060"])
        shared = answer("--unified-memory", "128")["machine"]
        assert (shared["free_mib"], shared["host_mib"]) == (98_304, 32_768)
        assert answer("--unified-memory", "64", "--free-memory", "20000")["machine"]["free_mib"] == 20_000
        assert answer("--unified-memory", "16")["machine"]["cards"] == ["AMD Radeon 890M"]
        unknown = run("--gpu", "RTX 4095")
        assert unknown.returncode == 2
        assert "NVIDIA GeForce RTX 4090" in unknown.stderr

    def test_the_described_machine_is_in_the_json(self) -> None:
        result = answer(
            "--gpu-memory", "16", "--free-memory", "15000", "--headless", "--host-memory", "32", "--backend", "vulkan"
        )
        assert result["machine"] == {
            "described": True, "gpu": None, "cards": ["NVIDIA GeForce RTX 5060 Ti"], "gpus": 1,
            "backend": "vulkan", "nominal_gb": 16.0, "free_mib": 15_000,
            "margin_mib": 512, "host_mib": 24_576,
            "memory": {"alone_mib": 15_000, "beside_mib": 15_000, "own_mib": 0, "read_at": None},
            "notes": [
                "The plan uses up to 24,576 MiB of 32 GiB host memory and leaves the rest to the system.",
                "Speeds are those of a typical card of this size: NVIDIA GeForce RTX 5060 Ti.",
            ],
        }  # fmt: skip
        assert result["plans"][0]["backend"] == "vulkan"

    def test_every_option_is_used(self) -> None:
        plan = first_plan(
            "--model", MOE, "--gpu-memory", "80", "--quant", "UD-Q4_K_M", "--ctx", "65536", "--kv", "q4_0",
            "--draft", "1", "--ubatch", "1024", "--n-cpu-moe", "5", "--slots", "2",
        )  # fmt: skip
        wanted = {
            "quant": "UD-Q4_K_M", "ctx": 65_536, "kv": "q4_0", "draft": 1, "ubatch": 1_024, "n_cpu_moe": 5, "slots": 2,
        }  # fmt: skip
        assert {name: plan[name] for name in wanted} == wanted
        assert plan["status"] == "OFFLOADS"

    def test_the_same_quantisation_may_be_named_twice(self) -> None:
        assert first_plan(f"{MOE}:UD-IQ4_XS", "--quant", "ud-iq4_xs", "--gpu-memory", "24")["quant"] == "UD-IQ4_XS"

    def test_options_that_turn_mtp_off(self) -> None:
        for words in (["--no-mtp"], ["--draft", "0"], ["--no-mtp", "--draft", "0"]):
            plan = first_plan("--gpu-memory", "24", *words)
            assert (plan["draft"], plan["drafter"], plan["parts"]["draft_kv"]) == (0, "none", 0)
            assert "--spec-type" not in plan["argv"]


class TestExtra:
    def test_extra_arguments_come_last_and_unchanged(self) -> None:
        words = ["--threads", "8", "-ot", "exps=CPU", "--json", "two words"]
        result = run("--gpu-memory", "24", "--json", "--", *words)
        plan = json.loads(result.stdout)["plans"][0]
        assert plan["argv"][-len(words) :] == words == plan["extra"]
        assert plan["argv"][: -len(words)] == first_plan("--gpu-memory", "24")["argv"]

    def test_files_in_extra_arguments_lie_in_the_folder_of_the_shell(self, tmp_path: Path) -> None:
        words = ("plan", "--gpu-memory", "24", "--json", "--", "--grammar-file", "./g.gbnf")
        plan = json.loads(forked.run(*words, cwd=tmp_path).stdout)["plans"][0]
        assert plan["argv"][-1] == str(tmp_path / "g.gbnf")

    def test_extra_arguments_are_marked_in_the_text(self) -> None:
        result = run("--gpu-memory", "24", "--", "--threads", "8", "two words")
        command = result.stdout[result.stdout.index("  command") :].split("\n\n")[0]
        assert "and yours: --threads 8 'two words'" in " ".join(command.split())
        assert run("--gpu-memory", "24").stdout.count("and yours") == 0

    @pytest.mark.cases(2)
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["-c", "8"], "Your own -c is not counted in these figures, and can change the memory. --ctx before"),
            (["--cache_type-k=f16", "-ctv", "f16"], "Your own --cache_type-k and -ctv are not counted"),
            (["-np", "4", "-ub", "64", "-ncmoe", "3"], "--slots, --ubatch and --n-cpu-moe before the -- would be"),
            (["--n-gpu-layers", "10"], "Your own --n-gpu-layers is not counted"),
            (["--threads", "8", "--alias", "c"], None),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else None,
    )
    def test_extra_arguments_that_change_the_memory_are_warned_about(
        self, words: list[str], expected: str | None
    ) -> None:
        plain, plan = first_plan("--gpu-memory", "24"), first_plan("--gpu-memory", "24", extra=words)
        assert plan["required_mib"] == plain["required_mib"]
        more = plan["cautions"][len(plain["cautions"]) :]
        assert (len(more), expected is None or expected in more[0]) == (0 if expected is None else 1, True)
        text = " ".join(run("--gpu-memory", "24", "--", *words).stdout.split())
        assert (expected or "not counted") in text or expected is None

    def test_a_word_without_the_separator_is_wrong_usage(self) -> None:
        assert run("qwen3.5-9b-mtp", "--gpu-memory", "24", "something").returncode == 2


class TestText:
    MACHINES = (
        ["--gpu-memory", "12", "--host-memory", "16"],
        ["--gpu-memory", "16", "--intent", "as-published"],
        ["--gpu-memory", "80", "--slots", "4", "--model", MOE],
        ["--gpu-memory", "2"],
        ["--model", "gemma-4-31b", "--gpu-memory", "24"],
        ["--host-memory", "64"],
    )

    @pytest.mark.cases(4)
    @pytest.mark.parametrize("arguments", MACHINES, ids=" ".join)
    @pytest.mark.parametrize("columns", [60, 80, 120])
    def test_the_output_is_as_wide_as_the_terminal(self, columns: int, arguments: list[str]) -> None:
        output = run(*arguments, COLUMNS=str(columns)).stdout
        long = [line for line in output.splitlines() if len(line) > columns]
        assert len(output.splitlines()) > 2
        assert [line for line in long if " " in line[12:]] == []  # only file names, which are not broken, may be longer
        assert output.split() == run(*arguments, COLUMNS="10000").stdout.split()

    def test_the_text_has_settings_memory_reasons_and_cautions(self) -> None:
        output = run("--gpu-memory", "16").stdout
        assert output.startswith("A GPU of 16 GiB (cuda): 15,843 MiB free, 1,024 of them to stay free\n")
        for label in ("settings", "memory", "why", "caution", "measured", "file", "command"):
            assert f"\n  {label} " in output
        assert "FITS  Qwen3.6-35B-A3B with MTP head, UD-IQ3_XXS, 13.1 GiB" in output
        assert "Other plans" in output
        assert output.count("NJannasch") == 1

    def test_each_guess_is_marked(self, home: Path) -> None:
        def memory(backend: str, *more: str) -> str:
            result = " ".join(run("--gpu-memory", "24", "--backend", backend, *more).stdout.split())
            return result[result.index(" memory ") : result.index(" why ")]

        unread, guess = "its header is not read yet", "the compute buffer is a guess"
        assert [text in memory("cuda") for text in (unread, guess)] == [True, False]
        assert [text in memory("metal") for text in (unread, guess)] == [True, True]
        add_own_model(home, model("qwen35-9b-q4_k_m"))
        own = ("--model", "own")
        assert [text in memory("cuda", *own) for text in (unread, guess)] == [False, False]
        assert [text in memory("metal", *own) for text in (unread, guess)] == [False, True]

    def test_missing_published_runs_are_reported(self) -> None:
        assert "no similar run was published" in run("--gpu-memory", "80", "--model", MOE).stdout

    def test_a_model_that_cannot_be_planned_has_a_hint(self, home: Path) -> None:
        path = home / "config" / "models" / "mine.toml"
        path.parent.mkdir(parents=True)
        file = '{ quant = "Q8_0", file = "a.gguf" }'
        path.write_text(f'[[models]]\nid = "mine"\nname = "Mine"\nrepo = "a/b"\nfiles = [{file}]\n', "utf-8")
        result = run("--model", "mine", "--gpu-memory", "16")
        assert result.returncode == 1
        output = " ".join(result.stdout.split())
        assert "Not planned: mine Q8_0: its layout is unknown. `mtp-launcher models mine --refresh`" in output

    def test_too_little_host_memory_is_reported_first(self) -> None:
        described = "--model", MOE, "--quant", "UD-Q4_K_M", "--gpu-memory", "12", "--host-memory", "8"
        assert answer(*described, code=1)["plans"][0]["host_short"]
        result = " ".join(run(*described).stdout.split())
        assert result.index("too little host memory. What fits: ") < result.index("TOO BIG")

    def test_help_names_every_option(self) -> None:
        result = run("--help")
        assert result.returncode == 0
        for option in (
            "--model", "--gpu-memory", "--free-memory", "--headless", "--host-memory", "--quant", "--ctx", "--kv",
            "--draft", "--ubatch", "--n-cpu-moe", "--slots", "--no-mtp", "--backend", "--intent", "--json",
        ):  # fmt: skip
            assert option in result.stdout


class TestExitCodes:
    def test_exit_code_1_if_all_plans_are_too_big(self) -> None:
        tiny = "--gpu-memory", "2", "--free-memory", "300"
        result = answer(*tiny, code=1)
        assert {plan["status"] for plan in result["plans"]} == {"TOO BIG"}
        assert all(any("can start it anyway" in text for text in plan["cautions"]) for plan in result["plans"])
        text = run(*tiny)
        assert (text.returncode, text.stderr) == (1, "")
        assert "TOO BIG" in text.stdout

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["--model", "qwen3.6-35b"], "model_unknown"),
            (["--model", MOE, "--quant", "Q9"], "model_unknown"),
            (["--quant", "Q9"], "model_unknown"),
            (["--kv", "q9"], "bad_option"),
            (["--ctx", "1"], "bad_option"),
            (["--draft", "17"], "bad_option"),
            (["--ubatch", "0"], "bad_option"),
            (["--n-cpu-moe", "-1"], "bad_option"),
            (["--slots", "0"], "bad_option"),
            (["--no-mtp", "--draft", "2"], "bad_option"),
            (["--gpu-memory", "0"], "bad_option"),
            (["--gpu-memory", "1000000000"], "bad_option"),
            (["--gpu-memory", "8", "--free-memory", "9000"], "bad_option"),
            (["--free-memory", "-1"], "bad_option"),
            (["--host-memory", "0"], "bad_option"),
            (["--gpu-memory", "8", "--backend", "cpu"], "bad_option"),
            (["--backend", "cuda"], "bad_option"),
            (["--unified-memory", "64", "--host-memory", "32"], "bad_option"),
            (["--unified-memory", "64", "--free-memory", "70000"], "bad_option"),
            ([f"{MOE}:UD-IQ4_XS", "--quant", "UD-IQ3_S"], "bad_option"),
            (["--model", "qwen3.8-27b", "--quant", "UD-IQ2_XXS", "--draft", "2"], "model_has_no_mtp_head"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else value,
    )
    def test_exit_code_1_with_a_sentence_and_a_hint(self, arguments: list[str], code: str) -> None:
        machine = {"--gpu-memory", "--free-memory", "--backend", "--unified-memory"}
        described = [] if machine & {*arguments} else ["--gpu-memory", "24"]
        error = answer(*described, *arguments, code=1)["error"]
        assert error["code"] == code
        assert error["message"].endswith(".")
        assert error["hint"].endswith(".")

    def test_an_error_is_printed_as_text(self) -> None:
        result = run("--model", "qwen3.6-35b", "--gpu-memory", "24")
        assert (result.returncode, result.stdout) == (1, "")
        error, hint = result.stderr.splitlines()
        assert error == 'Error: The catalogue has no model "qwen3.6-35b".'
        assert "Did you mean qwen3.6-35b-a3b" in hint

    @pytest.mark.parametrize(
        "arguments",
        [["--gpu-memory", "nan"], ["--gpu-memory", "1e9"], ["--intent", "fast"], ["--backend", "opencl"], ["--fly"]],
        ids=" ".join,
    )
    def test_exit_code_2_for_wrong_usage(self, arguments: list[str]) -> None:
        result = run(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the library of a present NVIDIA driver."""
    return str(compile_driver(tmp_path_factory.mktemp("driver")))


class TestThisMachine:
    def test_without_a_gpu_the_processor_is_planned(self) -> None:
        result = answer("--host-memory", "64")
        assert (result["machine"]["backend"], result["machine"]["free_mib"]) == ("cpu", 57_344)
        plan = result["plans"][0]
        assert (plan["ctx"], plan["status"], plan["evidence"]) == (32_768, "FITS", [])
        assert "--gpu-layers" not in plan["argv"]
        text = run("--host-memory", "64").stdout
        assert text.startswith("No usable GPU: the processor (cpu): 57,344 MiB free")

    def test_with_a_driver_the_free_memory_of_the_gpu_counts(self, driver: str) -> None:
        result = answer(LD_LIBRARY_PATH=driver)
        machine, plan = result["machine"], result["plans"][0]
        assert (machine["described"], machine["gpu"], machine["backend"]) == (False, "NVIDIA Stub 24GB", "cuda")
        assert machine["nominal_gb"] == 24.0
        assert plan["free_mib"] == machine["free_mib"]
        limits = plan["limit_full_tokens_per_second"], plan["limit_tokens_per_second"]
        assert limits == (None, None) or 0 < limits[0] < limits[1]
        text = run(LD_LIBRARY_PATH=driver).stdout
        assert text.startswith("NVIDIA Stub 24GB (cuda): ")

    def test_two_gpus_are_planned_together(self, driver: str) -> None:
        result = answer(LD_LIBRARY_PATH=driver, STUB_GPUS="2")
        assert result["machine"]["gpus"] == 2
        plan = result["plans"][0]
        assert plan["parts"]["overhead"] == 660
        assert sum(plan["by_gpu_mib"]) == pytest.approx(plan["required_mib"], abs=1.5)
        assert plan["needed_mib"] >= plan["required_mib"]
        assert any("The layers are split over 2 GPUs by free memory" in text for text in plan["cautions"])
        assert run(LD_LIBRARY_PATH=driver, STUB_GPUS="2").stdout.startswith("2 x NVIDIA Stub 24GB (cuda)")


def test_errors_in_a_file_of_the_user_are_reported_and_the_rest_is_planned(home: Path) -> None:
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('[[models]]\nid = "mine"\nname = "Mine"\nfiles = []\n')
    result = answer("--gpu-memory", "24")
    (problem,) = result["problems"]
    assert (problem["line"], problem["field"]) == (4, "models[0].files")
    assert result["plans"][0]["model"] == MOE
    text = run("--gpu-memory", "24")
    assert text.returncode == 0
    assert text.stderr.startswith(f"Left out: {folder / 'mine.toml'}:4: models[0].files: ")
    missed = run("--gpu-memory", "24", "--model", "mine")
    assert (missed.returncode, missed.stderr.count("Left out: ")) == (1, 1)


def test_choices_of_options_equal_those_of_their_types() -> None:
    assert Backend.__args__ == BACKENDS  # type: ignore[attr-defined]
    assert Intent.__args__ == INTENTS  # type: ignore[attr-defined]
