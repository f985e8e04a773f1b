"""Estimates by an engine: the real one on sparse files of real shapes, and small programs for rare faults."""

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning.engine_answer import compare_with_engine
from launcher.app.planning.model_source import ModelSource, estimate_by_formula, read_source
from launcher.app.planning.planner import EngineComparison
from launcher.base.errors import EngineFailed, EngineUnsuitable, GeometryUnknown, LauncherError
from launcher.engine.builds.build import EngineBuild
from launcher.engine.builds.probe import probe_engine
from launcher.engine.engine_estimate import EngineEstimate, TwinPart, ask_engine, comparable_parts, difference_percent
from launcher.models.memory import PlanSettings
from tools.sparse_models.models import model
from tools.sparse_models.write import write

FLAGS = frozenset(
    {
        "--model", "--host", "--port", "--ctx-size", "--parallel", "--gpu-layers", "--cache-type-k", "--cache-type-v",
        "--flash-attn", "--ubatch-size", "--n-cpu-moe", "--spec-type", "--spec-draft-n-max", "--log-jsonl", "--device",
    }
)  # fmt: skip
PART = TwinPart("model.gguf", b"GGUF" + bytes(1_000), 2**34)
CARDS = """
rows = [("Vulkan0", True, 8133, 780, 638), ("Vulkan1", True, 7755, 767, 617), ("Host", False, 515, 0, 553)]
head = [("Vulkan0", True, 8133, 0, 0), ("Vulkan1", True, 7755, 256, 609), ("Host", False, 515, 0, 532)]
for table in (rows, head)[:tables]:
    print(json.dumps({"type": "fit_memory_breakdown", "data": {"rows": [
        {"kind": "device" if card else "host", "name": name, "model": model, "context": context, "compute": compute}
        | ({"total": 12288, "free": 11888} if card else {})
        for name, card, model, context, compute in table
    ]}}), flush=True)
"""


def program(tmp_path: Path, body: str, flags: frozenset[str] = FLAGS) -> EngineBuild:
    """Write a short program in place of an engine."""
    path = tmp_path / "engine.py"
    path.write_text(f"import json, os, sys, time\n{body}")
    return EngineBuild("fake", (sys.executable, str(path)), "b1", flags)


def estimate(
    build: EngineBuild, setting: PlanSettings, parts: list[TwinPart] | None = None, limit_s: float = 30
) -> EngineEstimate:
    return asyncio.run(ask_engine(build, parts or [PART], setting, limit_s=limit_s))


@pytest.fixture
def sparse_model(tmp_path: Path) -> Path:
    path = tmp_path / "35b.gguf"
    write(path, "35b", model("qwen35moe-35b-q3_k_xl"))
    return path


def left_behind(home: Path) -> list[Path]:
    folder = home / "cache" / "twins"
    return list(folder.iterdir()) if folder.exists() else []


class TestRealEngine:
    def test_the_built_in_engine_agrees_with_the_formula_to_the_mib(self, sparse_model: Path, home: Path) -> None:
        source = read_source(str(sparse_model))
        setting = PlanSettings(262_144, "q8_0", draft=2, ubatch=256, backend="cpu")
        verdict = asyncio.run(compare_with_engine(source, setting, None))
        engine, formula = verdict.engine, verdict.formula
        assert formula is not None
        # A real GPU's log, as far as it does not depend on the backend: 2,908 of context, 512 of the head's.
        assert (engine.context_mib, engine.draft_context_mib) == (2_908, 512)
        assert (engine.backend, engine.devices, engine.host_mib, engine.free_mib) == ("cpu", (), 0, None)
        known = comparable_parts(formula)
        assert engine.context_mib == int(known["context_mib"])
        assert engine.draft_context_mib == int(known["draft_context_mib"])
        assert engine.compute_mib == pytest.approx(known["compute_mib"], rel=0.03)
        assert engine.draft_compute_mib == pytest.approx(known["draft_compute_mib"], rel=0.03)
        assert verdict.difference_percent == pytest.approx(0, abs=0.1)
        assert not verdict.flagged
        assert engine.seconds > 0
        assert left_behind(home) == []

    def test_without_mtp_one_table_is_read(self, sparse_model: Path) -> None:
        engine = estimate(
            asyncio.run(probe_engine(None)), PlanSettings(32_768, draft=0, backend="cpu"), parts_of(sparse_model)
        )
        assert (engine.draft_context_mib, engine.draft_compute_mib) == (None, None)
        assert engine.total_mib == engine.model_mib + engine.context_mib + engine.compute_mib

    def test_experts_on_the_host_change_nothing_without_a_gpu(self, sparse_model: Path) -> None:
        build = asyncio.run(probe_engine(None))
        plain = estimate(build, PlanSettings(32_768, backend="cpu"), parts_of(sparse_model))
        moved = estimate(build, PlanSettings(32_768, backend="cpu", n_cpu_moe=20), parts_of(sparse_model))
        assert replace(moved, seconds=0) == replace(plain, seconds=0)

    def test_a_file_without_a_head_is_estimated_without_drafts(self, tmp_path: Path, home: Path) -> None:
        path = tmp_path / "headless.gguf"
        write(path, "headless", model("qwen35-9b-q4_k_m-nomtp"))
        verdict = asyncio.run(
            compare_with_engine(read_source(str(path)), PlanSettings(4_096, draft=2, backend="cpu"), None)
        )
        assert not verdict.engine.draft_context_mib
        assert left_behind(home) == []

    def test_a_model_without_a_formula_is_estimated_by_the_engine(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        made = model("gemma3-12b-q4_k")
        write(path, "model", replace(made, metadata=made.metadata | {"shortconv.l_cache": 4}))
        source = read_source(str(path))
        with pytest.raises(GeometryUnknown):
            estimate_by_formula(source, PlanSettings(4_096, draft=0))
        verdict = asyncio.run(compare_with_engine(source, PlanSettings(32_768, draft=0, backend="cpu"), None))
        assert (verdict.formula, verdict.difference_percent, verdict.flagged) == (None, None, False)
        assert verdict.engine.context_mib == 2_528


def parts_of(path: Path) -> list[TwinPart]:
    return list(read_source(str(path)).parts)


class TestCards:
    @pytest.mark.parametrize("draft", [0, 2])
    def test_memory_of_all_gpus_is_summed_and_host_memory_separate(self, draft: int, tmp_path: Path) -> None:
        build = program(tmp_path, f"tables = {2 if draft else 1}\n{CARDS}\ntime.sleep(60)\n")
        engine = estimate(build, PlanSettings(131_072, "q8_0", draft=draft))
        assert (engine.backend, engine.devices) == ("vulkan", ("Vulkan0", "Vulkan1"))
        assert (engine.model_mib, engine.context_mib, engine.compute_mib) == (15_888, 1_547, 1_255)
        assert (engine.draft_context_mib, engine.draft_compute_mib) == ((256, 609) if draft else (None, None))
        assert (engine.host_mib, engine.free_mib) == (515 + 553, 23_776)

    def test_a_gpu_engine_without_expert_offload_is_not_asked_for_a_plan_with_it(self, tmp_path: Path) -> None:
        build = program(tmp_path, f"tables = 2\n{CARDS}\ntime.sleep(60)\n", FLAGS - {"--n-cpu-moe"})
        with pytest.raises(EngineUnsuitable, match="--n-cpu-moe"):
            estimate(build, PlanSettings(131_072, n_cpu_moe=10))

    def test_the_engine_is_started_with_the_options_of_a_server(self, tmp_path: Path) -> None:
        build = program(tmp_path, f"open('args', 'w').write(' '.join(sys.argv[1:]))\ntables = 2\n{CARDS}")
        build = replace(build, command=(*build.command,), environment={"KEPT": "1"})
        result = tmp_path / "arguments"
        script = tmp_path / "engine.py"
        script.write_text(script.read_text().replace("'args'", repr(str(result))))
        estimate(build, PlanSettings(131_072, "q8_0", draft=2, ubatch=256, n_cpu_moe=3))
        words = result.read_text()
        wanted = (
            "--ctx-size 131072 --parallel 1 --gpu-layers 99 --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on"
        )
        assert wanted in words
        assert "--n-cpu-moe 3 --spec-type draft-mtp --spec-draft-n-max 2" in words
        assert "--log-jsonl" in words
        assert "--verbosity" not in words


class TestTrouble:
    def test_an_engine_that_prints_no_tables_is_reported(self, tmp_path: Path, home: Path) -> None:
        build = program(tmp_path, "print('I: projected to use 1 MiB', flush=True)\ntime.sleep(60)")
        with pytest.raises(
            EngineUnsuitable, match=r"The engine fake \(b1\) does not report the memory of a model"
        ) as wrong:
            estimate(build, PlanSettings(4_096))
        assert wrong.value.hint == "Use llama.cpp build b11434 or newer."
        assert left_behind(home) == []

    def test_an_engine_that_prints_no_table_for_mtp_is_reported(self, tmp_path: Path) -> None:
        build = program(tmp_path, f"tables = 1\n{CARDS}\nprint(json.dumps({{'msg': 'projected to use 9 MiB'}}))")
        with pytest.raises(EngineUnsuitable, match="does not report the memory of MTP"):
            estimate(build, PlanSettings(4_096, draft=2))

    def test_an_engine_that_ends_without_output_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(EngineUnsuitable, match="does not report the memory of a model"):
            estimate(program(tmp_path, "sys.exit(0)"), PlanSettings(4_096))

    def test_an_engine_that_crashes_is_reported(self, tmp_path: Path, home: Path) -> None:
        build = program(tmp_path, "print('E everything is lost', file=sys.stderr)\nos.abort()")
        with pytest.raises(EngineFailed, match="SIGABRT while judging the memory") as died:
            estimate(build, PlanSettings(4_096))
        assert "everything is lost" in died.value.title
        assert left_behind(home) == []

    def test_a_refusal_names_the_users_file_and_not_the_twin_of_it(self, tmp_path: Path) -> None:
        code = (
            "print(f\"E llama_model_load_from_file_impl: failed to load model '{path}'\", file=sys.stderr)\nsys.exit(1)"
        )
        build = program(tmp_path, f"path = sys.argv[sys.argv.index('--model') + 1]\n{code}")
        with pytest.raises(LauncherError) as refused:
            estimate(build, PlanSettings(4_096))
        said = f"{refused.value.title} {refused.value.hint}"
        assert ".gguf" in said
        assert "twins" not in said

    def test_an_engine_that_refuses_a_flag_is_reported(self, tmp_path: Path) -> None:
        build = program(tmp_path, "print('error: invalid argument: --flash-attn', file=sys.stderr)\nsys.exit(1)")
        with pytest.raises(EngineUnsuitable, match="does not support the flag --flash-attn"):
            estimate(build, PlanSettings(4_096))

    def test_an_engine_that_hangs_is_killed_at_the_time_limit(self, tmp_path: Path, home: Path) -> None:
        build = program(tmp_path, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)")
        began = time.monotonic()
        with pytest.raises(EngineUnsuitable, match=r"did not report the model's memory within 0\.3 s"):
            estimate(build, PlanSettings(4_096), limit_s=0.3)
        assert time.monotonic() - began < 300
        assert left_behind(home) == []

    def test_endless_output_is_limited(self, tmp_path: Path) -> None:
        build = program(tmp_path, "while True: print('x' * 1000, flush=True)")
        with pytest.raises(EngineUnsuitable, match="did not report the model's memory within"):
            estimate(build, PlanSettings(4_096), limit_s=0.3)


class TestDifference:
    def engine(self, total: int) -> EngineEstimate:
        return EngineEstimate("e", "cpu", (), total, 0, 0, None, None, 0, None, 0.1)

    def test_the_difference_counts_the_parts_that_both_know(self, sparse_model: Path) -> None:
        formula = estimate_by_formula(
            ModelSource(read_source(str(sparse_model)).model, ()), PlanSettings(32_768, backend="cpu")
        )
        known = sum(comparable_parts(formula).values())
        assert known == pytest.approx((formula.parts.total - formula.parts.overhead) / 2**20)
        assert difference_percent(formula, self.engine(round(known / 1.05))) == pytest.approx(5, abs=0.01)
        assert difference_percent(formula, self.engine(0)) is None

    @pytest.mark.parametrize(
        ("percent", "flagged"), [(0.0, False), (2.9, False), (-2.9, False), (3.1, True), (-4, True)]
    )
    def test_a_difference_from_three_percent_on_is_flagged(self, percent: float, flagged: bool) -> None:
        assert EngineComparison(self.engine(1), None, percent).flagged is flagged
