"""Plan, the engine's own estimate, serve, export and tune give an engine the same arguments for the same settings."""

import asyncio
import json
import random
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launcher.app.measuring.session_bench import options_with_settings
from launcher.app.models import recipes
from launcher.app.planning import engine_answer, model_source, planner
from launcher.app.planning.planner import MachineDescription
from launcher.app.planning.start_settings import resolve_start
from launcher.engine.arguments import START_FLAGS
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.engine.settings import change_settings
from launcher.models.catalogue_load import load_catalogue
from launcher.models.locate import select_model
from launcher.models.memory import KV_TYPES
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.server_settings import ROWS, Value, to_fields
from tests.plumbing import leave_out_start_flags
from tools.sparse_models.models import model
from tools.sparse_models.write import write

MODELS = (
    "qwen35moe-35b-iq3_s",
    "qwen35-27b-q4_k_s",
    "qwen35moe-35b-q4_k_m",
    "qwen35-27b-q4_k_m",
    "qwen35-9b-q4_k_m",
    "llama-8b-q4_k",
    "qwen3moe-30b-q4_k",
    "gemma3-12b-q4_k",
)
SETTINGS_EACH = 25
ENDPOINT = Endpoint(20_001, "a-key")
CARD = """#!/bin/sh
case "$*" in
    *--version*) echo 'version: 11669 (fake)' >&2 ;;
    *--list-devices*) echo 'Available devices:'; echo '  CUDA0: NVIDIA GeForce RTX 4090 (24082 MiB, 23500 MiB free)' ;;
    *--help*) echo '{flags}' ;;
    *)
        for word in "$@"; do printf '%s\\n' "$word"; done >{output}
        for table in 1 2; do
            echo '{{"type": "fit_memory_breakdown", "data": {{"rows": [{{"kind": "device", "name": "CUDA0",'\
' "model": 1, "context": 1, "compute": 1, "total": 24082, "free": 23500}}]}}}}'
        done
        exec sleep 60 ;;
esac
"""


@pytest.fixture(params=["the built-in engine", "a card"])
def card(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """The file in which a llama-server on PATH, which lists a GPU, writes its arguments; None without one."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if request.param != "a card":
        return None
    monkeypatch.setattr("launcher.machine.host.read_cpu_limit", lambda _: 1.0)  # so that threads are chosen
    result, program = tmp_path / "arguments", tmp_path / "llama-server"
    others = "--model --metrics --cors-origins --gpu-layers --flash-attn --batch-size --device --spec-type"
    row_flags = (flag for row in ROWS.values() for flag in row.flags)
    flags = " ".join({*others.split(), "--embeddings", "--reranking", *START_FLAGS, *row_flags})
    program.write_text(CARD.format(flags=flags, output=shlex.quote(str(result))))
    program.chmod(0o755)
    return result


@pytest.fixture(autouse=True)
def memory_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the host's free memory constant: limits depend on it, and other programs change it."""
    result = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: result)


def own_catalogue(home: Path, name: str) -> Path:
    """Put a model into the user's own catalogue, and return its file."""
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    path = folder / "own.gguf"
    write(path, "own", model(name))
    speculation = "speculation = 'mtp'\n" if "35" in name else ""
    files = "files = [{ quant = 'Q', file = 'own.gguf' }]\n"
    draft = 2 if speculation else 0
    preset = f"[[models.presets]]\nquant = 'Q'\nctx = 65_536\nkv = 'q8_0'\ndraft = {draft}\n"
    (folder / "own.toml").write_text(f"[[models]]\nid = 'own'\nname = 'Own'\n{files}{speculation}\n{preset}")
    return path


def random_settings(chance: random.Random, *, can_draft: bool, offloads: bool) -> dict[str, Value]:
    """Settings as a user may write them: all that a plan would choose itself, and any of the others."""
    settings: dict[str, Value] = {
        "ctx": chance.choice((4_096, 8_192, 20_000, 65_536, 131_072)),
        "kv": chance.choice([*KV_TYPES]),
        "draft": chance.randint(0, 6) if can_draft else 0,
        "ubatch": chance.choice((64, 256, 512, 1_024, 4_096)),
        "slots": chance.choice((1, 1, 2, 5)),
        "n_cpu_moe": chance.choice((0, 3, 20)) if offloads else 0,
        "moe_cache_mib": chance.choice((0, 1_024)) if offloads else 0,
    }
    others: Mapping[str, tuple[Value, ...]] = {
        "threads": (1, 2),
        "kv_unified": (True, False),
        "cache_ram": (0, 512, 8_192),
        "ctx_checkpoints": (0, 4, 32),
        "split_mode": ("layer", "none") if offloads else (),
        "tensor_split": ("3,1",) if offloads else (),
        "p_min": (0.0, 0.75),
        "draft_sampling": ("greedy", "probabilistic"),
        "ngram": ("none", "ngram-simple"),
    }
    for name, values in others.items():
        if values and chance.random() < 0.4:
            settings[name] = chance.choice(values)
    return settings


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "name", [*MODELS[:2], *(pytest.param(name, marks=pytest.mark.thorough) for name in MODELS[2:])]
)
def test_all_ways_to_start_a_model_give_it_the_same_arguments(name: str, card: Path | None, home: Path) -> None:
    asyncio.run(compare_all(name, card, home))


async def compare_all(name: str, card: Path | None, home: Path) -> None:
    path, chance, machine = own_catalogue(home, name), random.Random(name), MachineDescription()
    catalogue, here = load_catalogue(), await planner.read_situation(machine)
    assert (here.backend == "cpu") == (card is None)
    source, moe = model_source.read_source(str(path)), "moe" in name
    for number in range(SETTINGS_EACH // 2 + (card is None)):
        settings = random_settings(chance, can_draft="35" in name, offloads=moe and card is not None)
        served = await prepare_launch(change_settings(ServeOptions(path), settings), ENDPOINT)
        wanted = leave_out_start_flags(served.command.arguments)
        assert str(path) in wanted

        plan = make_plans(catalogue, here, PlanCriteria(model="own", **to_fields(settings)))[0]
        engine = await planner.planned_engine(machine, here)
        assert leave_out_start_flags(planner.plan_arguments(plan, engine)) == wanted, f"plan {number}: {settings}"
        environment = planner.plan_environment(engine)
        assert environment.items() <= served.command.environment.items()

        recipe = (
            await recipes.recipe_of_options(change_settings(ServeOptions(path), settings), port=None, backend=None)
        ).recipe
        exported = leave_out_start_flags([*recipe.program, *recipe.build_arguments()])
        assert exported == wanted, f"export {number}: {settings}"

        tuned = await prepare_launch(options_with_settings(ServeOptions(path, draft=0), settings), ENDPOINT)
        assert leave_out_start_flags(tuned.command.arguments) == wanted, f"tune {number}: {settings}"

        if card is not None:
            await engine_answer.compare_with_engine(source, plan.setting, None, machine)
            arguments = card.read_text().splitlines()
            model_at = arguments.index("--model") + 1
            arguments[model_at] = str(path)
            assert [wanted[0], *leave_out_start_flags(arguments)] == wanted, f"ask {number}: {settings}"


@pytest.mark.cases(1)
@pytest.mark.parametrize(("model", "flag"), [("embedding_model", "--embeddings"), ("reranker", "--reranking")])
def test_all_ways_to_start_an_embedding_model_or_reranker_give_it_the_same_arguments(
    model: str, flag: str, card: Path | None, home: Path, request: pytest.FixtureRequest
) -> None:
    """Only the header shows that the model is one of these; the user's catalogue does not."""
    source: Path = request.getfixturevalue(model)
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    path = folder / "own.gguf"
    path.symlink_to(source)
    files = "files = [{ quant = 'Q', file = 'own.gguf' }]\n"
    (folder / "own.toml").write_text(f"[[models]]\nid = 'own'\nname = 'Own'\n{files}speculation = 'mtp'\n")

    async def compare() -> None:
        machine = MachineDescription()
        here = await planner.read_situation(machine)
        settings: dict[str, Value] = {"ctx": 8_192, "kv": "f16", "ubatch": 256, "slots": 1}
        for named in ("own", str(source)):
            options = (await resolve_start(named, settings)).options
            served = await prepare_launch(options, ENDPOINT)
            wanted = leave_out_start_flags(served.command.arguments)
            assert [word for word in wanted if word in ("--embeddings", "--reranking")] == [flag]
            assert not any(word.startswith("--spec") for word in wanted)
            recipe = (await recipes.recipe_of_options(options, port=None, backend=None)).recipe
            assert leave_out_start_flags([*recipe.program, *recipe.build_arguments()]) == wanted

            selection = select_model(named, load_catalogue())
            criteria = PlanCriteria(model=selection.entry.id, **to_fields(settings))
            plan = make_plans(selection.catalogue, here, criteria)[0]
            assert plan.setting.draft == 0
            engine = await planner.planned_engine(machine, here)
            assert leave_out_start_flags(planner.plan_arguments(plan, engine)) == wanted

            if card is not None:
                await engine_answer.compare_with_engine(model_source.read_source(named), plan.setting, None, machine)
                arguments = card.read_text().splitlines()
                arguments[arguments.index("--model") + 1] = str(served.options.model)
                assert [wanted[0], *leave_out_start_flags(arguments)] == wanted

    asyncio.run(compare())


def test_the_built_in_engine_is_asked_with_the_arguments_of_its_server(home: Path) -> None:
    async def compare() -> None:
        path = own_catalogue(home, "qwen35-9b-q4_k_m")
        options = change_settings(ServeOptions(path, built_in=True), {"ctx": 20_000, "kv": "q8_0", "slots": 2})
        launch = await prepare_launch(options, ENDPOINT)
        from launcher.engine.engine_estimate import dry_run_command

        command = dry_run_command(launch.build, path, launch.plan_settings("cpu"), gpu=False)
        assert leave_out_start_flags(command.arguments) == leave_out_start_flags(launch.command.arguments)

    asyncio.run(compare())


def test_without_plumbing_removes_address_key_name_and_log() -> None:
    words = "llama-server --model m --host h --port 1 --alias a --api-key-file k --verbosity 4 --log-jsonl --log-file f"
    assert leave_out_start_flags(f"{words} --slot-save-path s --metrics -- x".split()) == (
        ["llama-server", "--model", "m", "--metrics", "--", "x"]
    )


def test_the_users_own_arguments_stay_apart_and_last(home: Path) -> None:
    path = own_catalogue(home, "qwen35-9b-q4_k_m")
    options = replace(ServeOptions(path), extra=("--jinja",), mmproj=path, chat_template_file=path)
    launch = asyncio.run(prepare_launch(options, ENDPOINT))
    words = launch.command.arguments
    assert words[-1] == "--jinja"
    assert words[words.index("--mmproj") + 1] == words[words.index("--chat-template-file") + 1] == str(path)
    assert json.dumps(launch.options.extra) == '["--jinja"]'
