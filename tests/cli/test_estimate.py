"""`mtp-launcher estimate` as a user types it, in separate processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.app.planning.model_source import estimate_by_formula, read_source
from launcher.cli.estimate import format_parts
from launcher.models.gguf import read_header, read_raw_header
from launcher.models.memory import PlanSettings
from launcher.models.situation import describe_machine
from tests import forked
from tests.conftest import Hub
from tests.models.tiny_models import write_bert
from tools.sparse_models.models import model
from tools.sparse_models.write import write

PARTS = {
    "weights", "kv", "recurrent", "draft_kv", "compute", "draft_compute", "staging", "overhead", "mmproj",
    "caches", "pool",
}  # fmt: skip
ENGINE = {"model_mib", "context_mib", "compute_mib", "draft_context_mib", "draft_compute_mib", "seconds"}
LONG = ("--ctx", "262144", "--kv", "q8_0", "--ubatch", "256")


@pytest.fixture(autouse=True)
def no_engine_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the llama-server that this computer may have."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")


@pytest.fixture(scope="module")
def sparse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sparse file of 17.2 GB with the geometry of Qwen3.6-35B-A3B and its head; it occupies almost no disk space."""
    path = tmp_path_factory.mktemp("sparse") / "35b.gguf"
    write(path, "35b", model("qwen35moe-35b-q3_k_xl"))
    return path


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    return forked.run("estimate", *arguments, **options)


def read_json(*arguments: str | Path, code: int = 0, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    result = run(*arguments, "--json", **options)
    assert result.returncode == code, result.stderr + result.stdout
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def read_error(*arguments: str | Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    error: dict[str, Any] = read_json(*arguments, code=1, **options)["error"]
    assert error["message"].endswith(".")
    return error


def write_engine(path: Path, body: str) -> Path:
    """Write an engine that answers --version and --help, and otherwise runs `body`."""
    flags = "--model --ctx-size --parallel --gpu-layers --flash-attn --spec-type --spec-draft-n-max --host --port"
    path.write_text(
        f"#!{sys.executable}\nimport os, signal, sys, time\n"
        "if '--version' in sys.argv: sys.exit(print('version: 7 (fake)'))\n"
        f"if '--help' in sys.argv: sys.exit(print('{flags}'))\n{body}\n"
    )
    path.chmod(0o755)
    return path


class TestJson:
    def test_the_documented_keys_are_there(self, sparse_model: Path) -> None:
        result = read_json(sparse_model, "--gpu-memory", "24", *LONG)
        assert result["parts"].keys() == PARTS
        assert result["total_mib"] == pytest.approx(sum(result["parts"].values()), abs=0.5)
        assert "engine" not in result
        assert (result["backend"], result["ctx"], result["kv"], result["draft"]) == ("cuda", 262_144, "q8_0", 2)
        assert (result["mtp_head"], result["architecture"], result["exact"]) == ("present", "qwen35moe", True)

    def test_the_figures_match_the_log_of_a_real_gpu(self, sparse_model: Path) -> None:
        # MiB in qiip's published logs (b10964): context 2,720 and 188.44, the head's context 512, compute 666.3, 148.
        parts = read_json(sparse_model, "--gpu-memory", "24", *LONG)["parts"]
        assert (parts["kv"], parts["recurrent"], parts["draft_kv"]) == (2_720, 188.4, 512)
        assert parts["compute"] == pytest.approx(666.3, rel=0.03)
        assert parts["draft_compute"] == pytest.approx(148, rel=0.03)
        assert (parts["staging"], parts["mmproj"]) == (0, 0)

    @pytest.mark.parametrize(
        ("options", "part", "wanted"),
        [
            (["--ctx", "65536"], "kv", 1_280),
            (["--ctx", "65536", "--kv", "q4_0"], "kv", 360),
            (["--draft", "4"], "recurrent", 314.1),
            (["--no-mtp"], "draft_kv", 0),
            (["--slots", "4"], "recurrent", 753.8),
        ],
    )
    def test_each_option_changes_its_part_of_the_memory(
        self, options: list[str], part: str, wanted: float, sparse_model: Path
    ) -> None:
        assert read_json(sparse_model, "--gpu-memory", "24", *options)["parts"][part] == pytest.approx(wanted, abs=0.1)

    @pytest.mark.parametrize(
        ("options", "too_long"), [(["256K"], False), (["512K"], True), (["512K", "--slots", "2"], False)]
    )
    def test_a_context_beyond_the_trained_one_is_reported(
        self, options: list[str], too_long: bool, sparse_model: Path
    ) -> None:
        warnings = read_json(sparse_model, "--gpu-memory", "24", "--kv", "Q8_0", "--ctx", *options)["warnings"]
        text = "The context is longer than the 262,144 tokens that the model was trained for."
        assert warnings == ([text] if too_long else [])

    def test_experts_on_the_host_count_as_host_memory(self, sparse_model: Path) -> None:
        machine = ("--gpu-memory", "24", "--ctx", "65536")
        plain, moved = (read_json(sparse_model, *machine, "--n-cpu-moe", count) for count in ("0", "20"))
        gone = plain["parts"]["weights"] - moved["parts"]["weights"]
        assert gone > 6_000
        assert moved["host_mib"] - plain["host_mib"] == pytest.approx(gone, rel=0.01)
        assert moved["parts"]["staging"] > 0


class TestText:
    def test_the_text_has_a_table_by_part(self, sparse_model: Path) -> None:
        lines = run(sparse_model, "--gpu-memory", "24", *LONG).stdout.splitlines()
        assert lines[0] == "35b, qwen35moe, 16.0 GiB"
        assert lines[1] == "context 262,144, KV q8_0, draft 2, ubatch 256, 1 slot, cuda"
        table = {line[:26].strip(): line.split()[-2] for line in lines[3:] if line.startswith("  ")}
        assert table["KV cache"] == "2,720.0"
        assert table["total"].startswith("20,")
        assert table["GPU memory free"] == "23,764"
        assert max(map(len, lines)) <= 110

    def test_too_little_memory_is_reported(self, sparse_model: Path) -> None:
        output = run(sparse_model, "--gpu-memory", "8", "--n-cpu-moe", "0").stdout
        assert "too few" in output.split("GPU memory free")[1].splitlines()[0]
        assert "too few" not in run(sparse_model, "--gpu-memory", "24").stdout

    def test_too_little_memory_of_one_of_several_gpus_is_reported(self, sparse_model: Path) -> None:
        cards = (22_000, 4_000)
        setting = PlanSettings(context=32_768, backend="cuda", gpus=2, gpu_free_mib=cards, tensor_split="1,1")
        found = estimate_by_formula(read_source(str(sparse_model)), setting)
        assert found.parts.total < 26_000 * 2**20 < found.needed_bytes
        here = replace(describe_machine(24), free_mib=26_000, gpus=2, gpu_free_mib=cards)
        result = "\n".join(format_parts(found, here, {}))
        assert f"{-(-found.needed_bytes // 2**20) - 26_000:,} too few" in result
        assert "TOO BIG" in result

    def test_figures_of_the_engine_are_shown_beside_those_of_the_formula(self, sparse_model: Path) -> None:
        output = run(sparse_model, "--gpu-memory", "24", "--ask-engine", *LONG).stdout
        assert "engine     2,908 with the KV cache" in output
        assert "engine       512" in output
        assert max(map(len, output.splitlines())) <= 110

    @pytest.mark.parametrize(
        ("options", "what"),
        [([], "the input embedding lies"), (["--n-cpu-moe", "4"], "input embedding and experts lie")],
        ids=["whole", "experts on the host"],
    )
    def test_a_difference_because_of_another_backend_is_explained(
        self, options: list[str], what: str, sparse_model: Path
    ) -> None:
        result = read_json(sparse_model, "--gpu-memory", "24", "--ask-engine", *options)
        more = round(result["engine"]["model_mib"] - result["parts"]["weights"])
        text = " ".join(run(sparse_model, "--gpu-memory", "24", "--ask-engine", *options).stdout.split())
        completed = text.split("It computes by cpu, and these figures are for cuda: its weights are ")[1]
        assert int(completed.split()[0].replace(",", "")) == pytest.approx(more, abs=1)
        assert completed.startswith(f"{completed.split()[0]} MiB more, because {what} in host memory beside a GPU;")

    def test_the_same_backend_is_not_explained(self, sparse_model: Path) -> None:
        output = run(sparse_model, "--backend", "cpu", "--host-memory", "64", "--ask-engine").stdout
        assert "It computes by" not in output

    @pytest.mark.cases(1)
    @pytest.mark.parametrize("columns", [60, 80, 120])
    def test_the_output_is_as_wide_as_the_terminal(self, columns: int, sparse_model: Path) -> None:
        machine, wide = ("--gpu-memory", "16"), run(sparse_model, "--gpu-memory", "16").stdout.split()
        environment = os.environ | {"COLUMNS": str(columns)}
        for options in ((), ("--ask-engine",)):
            output = run(sparse_model, *machine, *options, env=environment).stdout
            assert max(map(len, output.splitlines())) <= columns
        assert run(sparse_model, *machine, env=environment).stdout.split() == wide

    def test_a_guess_is_marked_as_a_guess(self, sparse_model: Path) -> None:
        output = run(sparse_model, "--gpu-memory", "24", "--backend", "metal").stdout
        assert "is a guess" in output
        assert "is a guess" not in run(sparse_model, "--gpu-memory", "24").stdout


class TestAskEngine:
    def test_the_built_in_engine_agrees_with_the_formula(self, sparse_model: Path, home: Path) -> None:
        result = read_json(sparse_model, "--backend", "cpu", "--ask-engine", *LONG)
        engine, parts = result["engine"], result["parts"]
        assert engine.keys() >= ENGINE
        assert (engine["context_mib"], engine["draft_context_mib"]) == (2_908, 512)
        assert engine["context_mib"] == int(parts["kv"] + parts["recurrent"])
        assert engine["draft_context_mib"] == parts["draft_kv"]
        assert engine["compute_mib"] == pytest.approx(parts["compute"], rel=0.03)
        assert engine["draft_compute_mib"] == pytest.approx(parts["draft_compute"], rel=0.03)
        assert abs(result["difference_percent"]) < 0.1
        assert result["flagged"] is False
        assert 0 < engine["seconds"] < 20
        assert list((home / "cache" / "twins").iterdir()) == []

    def test_without_mtp_the_drafts_are_null(self, sparse_model: Path) -> None:
        engine = read_json(sparse_model, "--backend", "cpu", "--no-mtp", "--ask-engine")["engine"]
        assert (engine["draft_context_mib"], engine["draft_compute_mib"]) == (None, None)

    def test_a_difference_of_more_than_three_percent_is_flagged(self, sparse_model: Path, tmp_path: Path) -> None:
        row = "P| - Host | 30000 = 20000 + 9000 + 1000 |"
        head = "P| memory breakdown [MiB] | total free self model context compute unaccounted |"
        body = f"for line in [{head!r}, {row!r}] * 2 + ['end']: print(line, flush=True)\ntime.sleep(60)"
        result = read_json(
            sparse_model, "--gpu-memory", "24", "--kv", "f16", "--engine", write_engine(tmp_path / "e", body)
        )
        assert (result["engine"]["model_mib"], result["flagged"]) == (20_000, True)
        assert result["difference_percent"] < -3
        text = run(sparse_model, "--gpu-memory", "24", "--kv", "f16", "--engine", tmp_path / "e").stdout
        assert "too far apart: believe the engine." in " ".join(text.split())

    @pytest.mark.parametrize(
        ("body", "code", "expected"),
        [
            (
                "print('projected to use 1 MiB', flush=True); time.sleep(60)",
                "engine_unsuitable",
                "does not report the memory of",
            ),
            ("os.abort()", "engine_failed", "SIGABRT"),
            ("sys.exit(3)", "engine_failed", "exit code 3"),
        ],
        ids=["silent", "dying", "failing"],
    )
    def test_the_formula_is_used_when_the_engine_fails(
        self, body: str, code: str, expected: str, sparse_model: Path, tmp_path: Path, home: Path
    ) -> None:
        engine = write_engine(tmp_path / "engine", body)
        result = read_json(sparse_model, "--gpu-memory", "24", "--kv", "f16", "--engine", engine, code=1)
        assert result["engine"] is None
        assert result["engine_error"]["code"] == code
        assert expected in result["engine_error"]["message"]
        assert result["difference_percent"] is None
        assert result["total_mib"] > 16_000
        text = run(sparse_model, "--gpu-memory", "24", "--engine", engine)
        assert text.returncode == 1
        assert "could not be asked." in text.stdout
        assert "The formula's figures stand." in " ".join(text.stdout.split())
        assert list((home / "cache" / "twins").iterdir()) == []

    def test_the_formula_is_used_when_no_sparse_file_can_be_made(self, sparse_model: Path, home: Path) -> None:
        (home / "cache").mkdir(parents=True)
        (home / "cache" / "twins").touch()
        result = read_json(sparse_model, "--gpu-memory", "24", "--ask-engine", code=1)
        assert result["engine"] is None
        assert result["engine_error"]["code"] == "twin_impossible"
        assert "MTP_LAUNCHER_HOME" in result["engine_error"]["hint"]
        assert result["parts"].keys() == PARTS

    def test_a_missing_engine_is_an_error(self, sparse_model: Path, tmp_path: Path) -> None:
        assert read_error(sparse_model, "--gpu-memory", "24", "--engine", tmp_path / "none")["code"] == "engine_missing"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_interrupting_the_engine_leaves_no_file(
        self, number: signal.Signals, sparse_model: Path, tmp_path: Path, home: Path
    ) -> None:
        engine = write_engine(tmp_path / "engine", f"open({str(tmp_path / 'began')!r}, 'w').close(); time.sleep(600)")
        arguments = ("estimate", sparse_model, "--gpu-memory", "24", "--kv", "f16", "--engine", engine)
        with forked.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            limit_s = time.monotonic() + 120  # long enough for a busy computer
            while not (tmp_path / "began").exists():
                assert time.monotonic() < limit_s
                assert process.poll() is None
                time.sleep(0.01)
            assert len(list((home / "cache" / "twins").iterdir())) == 1
            process.send_signal(number)
            assert process.wait(120) == 128 + number
        assert list((home / "cache" / "twins").iterdir()) == []


class TestFiles:
    def test_only_the_header_of_a_file_on_the_hub_is_read(self, hub: Hub, demo_model: Path) -> None:
        folder = hub.folder / "somebody" / "estimated"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.gguf").write_bytes(demo_model.read_bytes())
        there, here = (
            read_json(name, "--gpu-memory", "8", "--ask-engine")
            for name in ("somebody/estimated:demo.gguf", str(demo_model))
        )
        assert there["parts"] == here["parts"]
        assert (there["bytes"], there["name"]) == (here["bytes"], here["name"])
        assert there["engine"]["model_mib"] == here["engine"]["model_mib"]
        assert "Range" in {name for request in hub.requests() for name in request}

    def test_a_file_missing_on_the_hub_is_reported(self, hub: Hub) -> None:
        (hub.folder / "somebody" / "estimated").mkdir(parents=True, exist_ok=True)
        assert "none.gguf" in read_error("somebody/estimated:none.gguf", "--gpu-memory", "8")["message"]

    def test_without_the_hub_a_model_of_the_catalogue_can_still_be_planned(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert "plan qwen3.6-27b-mtp:Q4_K_M`" in read_error("qwen3.6-27b-mtp:Q4_K_M")["hint"]
        assert "mtp-launcher plan" not in read_error("somebody/estimated:demo.gguf")["hint"]

    def test_a_file_without_a_head_is_estimated_without_drafts(self, tmp_path: Path) -> None:
        path = tmp_path / "headless.gguf"
        write(path, "headless", model("qwen35moe-35b-iq3_s-nomtp"))
        result = read_json(path, "--gpu-memory", "24")
        assert (result["draft"], result["parts"]["draft_kv"], result["mtp_head"]) == (0, 0, "none")
        assert read_json(path, "--gpu-memory", "24", "--no-mtp")["parts"] == result["parts"]
        error = read_error(path, "--gpu-memory", "24", "--draft", "2")
        assert error["code"] == "model_has_no_mtp_head"
        assert error["hint"].startswith("Start it with --draft 0, or download a file with an MTP head")

    def test_a_file_that_is_not_gguf_is_reported(self, tmp_path: Path) -> None:
        path = tmp_path / "page.gguf"
        path.write_text("<html>Not found</html>")
        error = read_error(path, "--gpu-memory", "24")
        assert error["code"] == "model_broken"
        assert "is not a GGUF file" in error["message"]

    @pytest.mark.parametrize("name", ["none.gguf", "folder/none.gguf"])
    def test_a_missing_file_is_reported(self, name: str) -> None:
        error = read_error(name, "--gpu-memory", "24")
        assert (error["code"], error["message"]) == ("model_missing", f"Model file {name} not found.")
        assert "OWNER/NAME:FILE.gguf" in error["hint"]


class TestCutShort:
    @pytest.fixture
    def truncated_model(self, sparse_model: Path, tmp_path: Path) -> Path:
        """The file of `sparse_model`, truncated by 2,000,000,000 bytes."""
        path = tmp_path / "cut.gguf"
        with path.open("wb") as file:
            file.write(read_raw_header(read_header(sparse_model)))
            file.truncate(sparse_model.stat().st_size - 2_000_000_000)
        return path

    def test_a_warning_is_shown_and_the_figures_are_those_of_the_whole_file(
        self, truncated_model: Path, sparse_model: Path
    ) -> None:
        whole, result = (read_json(path, "--gpu-memory", "24") for path in (sparse_model, truncated_model))
        assert (whole["warnings"], result["parts"]) == ([], whole["parts"])
        (warning,) = result["warnings"]
        missing = 2_000_000_000 - (sparse_model.stat().st_size - read_header(sparse_model).needed_bytes)
        assert warning.startswith(f"cut.gguf is incomplete: {missing:,} of ")
        assert "Download it again" in warning
        text = run(truncated_model, "--gpu-memory", "24")
        assert text.returncode == 0
        assert f"Warning: {warning}" in " ".join(text.stdout.split())

    def test_a_file_that_the_engine_refuses_is_reported(self, truncated_model: Path) -> None:
        result = read_json(truncated_model, "--gpu-memory", "24", "--ask-engine", code=1)
        assert (result["engine"], result["engine_error"]["code"], len(result["warnings"])) == (None, "model_broken", 1)

    def test_a_warning_is_shown_for_a_file_on_the_hub(self, hub: Hub, demo_model: Path) -> None:
        folder = hub.folder / "somebody" / "cut"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.gguf").write_bytes(demo_model.read_bytes()[:-1_000])
        (warning,) = read_json("somebody/cut:demo.gguf", "--gpu-memory", "24")["warnings"]
        assert "It is incomplete on the hub." in warning


class TestWithoutAFormula:
    @pytest.fixture
    def strange_model(self, tmp_path: Path) -> Path:
        """A model with a header key for a cache that the formula does not know, and that the engine ignores."""
        path, made = tmp_path / "strange.gguf", model("gemma3-12b-q4_k")
        write(path, "strange", replace(made, metadata=made.metadata | {"shortconv.l_cache": 4}))
        return path

    @pytest.mark.parametrize("options", [(), ("--ask-engine",)])
    def test_the_figures_are_those_of_the_engine_alone(self, strange_model: Path, options: tuple[str, ...]) -> None:
        result = read_json(strange_model, "--gpu-memory", "24", *options)
        assert (result["total_mib"], result["parts"], result["difference_percent"]) == (None, None, None)
        assert result["estimated_by"] == result["engine"]["name"]
        assert (result["status"], result["needed_mib"] > result["engine"]["model_mib"]) == ("FITS", True)
        assert "no memory formula for the context" in result["parts_unknown"]
        assert result["engine"]["context_mib"] == 2_528
        text = run(strange_model, "--gpu-memory", "24", *options)
        assert text.returncode == 0
        assert "FITS, by the engine" in text.stdout
        assert "no memory formula for the context" in text.stdout
        assert "engine     2,528" in text.stdout

    def test_without_formula_and_engine_the_command_fails(self, strange_model: Path, tmp_path: Path) -> None:
        engine = write_engine(tmp_path / "engine", "sys.exit(3)")
        error = read_error(strange_model, "--gpu-memory", "24", "--engine", engine)
        assert error["code"] == "geometry_unknown"
        assert error["hint"].startswith("The engine could not estimate it either: The engine ended with exit code 3")
        assert "--ask-engine" not in error["hint"]
        assert "formula's figures" not in error["hint"]


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["--kv", "q9"], "bad_option"),
            (["--ctx", "1"], "bad_option"),
            (["--slots", "99"], "bad_option"),
            (["--draft", "17"], "bad_option"),
            (["--no-mtp", "--draft", "2"], "bad_option"),
            (["--gpu-memory", "0"], "bad_option"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else value,
    )
    def test_bad_options_end_with_one_sentence(self, arguments: list[str], code: str, sparse_model: Path) -> None:
        described = [] if "--gpu-memory" in arguments else ["--gpu-memory", "24"]
        assert read_error(sparse_model, *described, *arguments)["code"] == code

    @pytest.mark.parametrize("arguments", [[], ["a.gguf", "b.gguf"], ["a.gguf", "--quant", "Q"]], ids=" ".join)
    def test_wrong_usage_exits_with_code_2(self, arguments: list[str]) -> None:
        assert run(*arguments).returncode == 2

    def test_help_is_printed(self) -> None:
        result = run("--help")
        assert result.returncode == 0
        for option in ("--ask-engine", "--engine", "--gpu-memory", "--backend", "--kv", "--json"):
            assert option in result.stdout


class TestAdvice:
    def test_settings_and_a_model_that_fit_are_suggested(self, sparse_model: Path) -> None:
        small = (sparse_model, "--gpu-memory", "12", "--host-memory", "64", "--n-cpu-moe", "0", *LONG)
        result = read_json(*small)
        assert result["status"] == "TOO BIG"
        (experts,) = [each["settings"]["n_cpu_moe"] for each in result["advice"] if each["settings"]]
        moved = read_json(sparse_model, "--gpu-memory", "12", "--host-memory", "64", "--n-cpu-moe", str(experts), *LONG)
        assert (moved["status"], moved["advice"]) == ("OFFLOADS", [])
        (named,) = [each["model"] for each in result["advice"] if each["model"]]
        text = " ".join(run(*small).stdout.split())
        assert f"It does not fit. What would: With the experts of {experts} layers in host memory it fits" in text
        assert f"({named})." in text

    def test_a_shorter_context_is_suggested(self, sparse_model: Path) -> None:
        result = read_json(sparse_model, "--gpu-memory", "21", "--ctx", "262144", "--kv", "f16", "--n-cpu-moe", "0")
        contexts = [each["settings"]["ctx"] for each in result["advice"] if "ctx" in each["settings"]]
        assert contexts
        shorter = read_json(
            sparse_model, "--gpu-memory", "21", "--ctx", str(contexts[0]), "--kv", "f16", "--n-cpu-moe", "0"
        )
        assert shorter["status"] in ("FITS", "TIGHT")


def test_an_encoder_is_estimated_by_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    write_bert(path)
    result = read_json(path)
    assert (result["total_mib"], result["parts"], result["status"]) == (None, None, "FITS")
    assert result["engine"]["model_mib"] > 0
    assert "no memory formula" in result["parts_unknown"]
