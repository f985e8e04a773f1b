"""A measurement as a file: it is read back unchanged, and a shared one does not identify the computer."""

import getpass
import json
import platform
from dataclasses import fields, replace
from pathlib import Path

import pytest

from launcher.base.errors import BadOption, ResultMissing, ResultUnreadable
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.machine.machine import read_machine
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import RUN_COLUMNS, Session
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.report_export import as_csv, as_markdown, writer_for
from launcher.tuning.session_file import anonymize, read_session_file, session_json
from tests.tuning.measured import ENVIRONMENT, OFF, ON
from tests.tuning.measured import run as make_run


def run(rate: float | None, settings: RunSettings = OFF, *, prompt: str = "parser", **figures: object) -> Run:
    """A run of a prompt that comes with the program."""
    return make_run(rate, settings, prompt=prompt, **figures)  # type: ignore[arg-type]


SESSION = Session(
    "0123456789",
    "tune",
    "code",
    1_794_000_000.5,
    1_794_000_600.5,
    ENVIRONMENT,
    OFF,
    {"sentence": "Draft 2 is 41 % faster than no MTP for code.", "speedup": 1.41, "trials": [{"draft": 2}]},
    (
        *(run(rate, began_s=5_000.0 + at) for at, rate in enumerate((50.0, 51.0, 49.0))),
        *(run(rate, ON, began_s=5_100.0 + at, energy_j=40.0) for at, rate in enumerate((70.0, 71.5, 69.0))),
        run(None, ON, error="It ended."),
    ),
)
USER, HOST, HOME = "jane.doe", "janes-tower.lan", Path("/home/jane.doe")
SECRETS = (
    "jane",
    "doe",
    "tower",
    "/home",
    "GPU-0a1b",
    "0a1b2c3d",
    "C02XK",
    "de:ad:be",
    "192.168",
    "example.org",
    "sk-",
)


def personal_session() -> Session:
    """A measurement in whose texts is all that must not leave the computer."""
    environment = replace(
        ENVIRONMENT,
        system="Debian GNU/Linux 13, kernel 6.12.41-jane.doe-tower",
        engine="llama-server of jane.doe",
        engine_version="11434 (built on janes-tower by jane.doe)",
    )
    error = (
        "/home/jane.doe/models/x.gguf: out of memory on GPU-0a1b2c3d-1111-2222-3333-444455556666, "
        "serial number C02XK1ZZ, "
        "C:\\Users\\jane.doe\\x.gguf, de:ad:be:ef:00:01, 192.168.0.17, jane@example.org, key sk-proj-abcdefghijklm"
    )
    trials = [{"error": error, "/home/jane.doe/x": "~/models/own/file.gguf"}]
    result = {"sentence": "As jane.doe on JANES-TOWER.", "trials": trials}
    runs = (
        run(50.0, prompt="/home/jane.doe/prompts/letter.txt", began_s=123_456.0),
        run(None, {"draft": 2, "extra": "--log-file /var/tmp/jane.doe/log"}, began_s=123_460.0, error=error),
        run(9.0, began_s=123_470.0, spoilt="Another program (/opt/doe/tower/game) used the GPU."),
    )
    settings = {"draft": 2, "extra": "--lora /home/jane.doe/own.gguf"}
    return replace(SESSION, environment=environment, settings=settings, result=result, runs=runs)


@pytest.mark.parametrize("workload", ["/home/jane.doe/p.txt", ""])
def test_nothing_personal_is_in_a_shared_file(workload: str) -> None:
    result = replace(personal_session(), workload=workload)  # "": the prompts belong to no workload
    shared = anonymize(result, user=USER, host=HOST, home=HOME)
    text = session_json(shared).lower()
    assert [secret for secret in SECRETS if secret.lower() in text] == []
    assert "123456." not in text  # seconds since the computer was started
    assert "out of memory on [id]" in text
    assert shared.environment.system == "Debian GNU/Linux 13, kernel 6.12"
    assert [each.decode_rate for each in shared.runs] == [50.0, None, 9.0]


@pytest.mark.parametrize(("user", "host"), [("debian", "nvidia.lan"), ("no", "4"), ("GNU", "linux")])
def test_user_and_host_names_that_are_ordinary_words_hide_nothing_else(user: str, host: str) -> None:
    shared = anonymize(SESSION, user=user, host=host, home=HOME)
    assert shared.environment.gpus == ENVIRONMENT.gpus
    assert shared.result["sentence"] == SESSION.result["sentence"]
    assert ("Debian GNU/Linux 13" in shared.environment.system) is (user != "GNU")


def test_figures_model_and_hardware_stay() -> None:
    shared = anonymize(SESSION, user=USER, host=HOST, home=HOME)
    assert replace(shared.environment, system="") == replace(ENVIRONMENT, system="")
    assert shared.result == SESSION.result
    assert [replace(each, began_s=0.0) for each in shared.runs] == [replace(each, began_s=0.0) for each in SESSION.runs]
    assert shared.began_s % 86_400 == 0
    assert shared.ended_s == shared.began_s + 600


def test_prompt_files_and_servers_are_not_named() -> None:
    runs = tuple(replace(each, prompt=f"divorce {at}") for at, each in enumerate(SESSION.runs))
    result = {
        "workload": {"name": "divorce", "version": 1},
        "url": "http://127.0.0.1:28536",
        "against": ["http://my-server:11434/v1"],
        "sentence": "Draft 2 is 41 % faster than no MTP for divorce, beside http://10.1.2.3:80/v1, and so on.",
    }
    shared = anonymize(replace(SESSION, workload="divorce", runs=runs, result=result))
    assert "divorce" not in session_json(shared)
    assert "http" not in session_json(shared)
    assert shared.workload == "own prompts"
    assert [each.prompt for each in shared.runs] == [f"prompt {number}" for number in range(1, len(runs) + 1)]
    assert shared.result["workload"] == {"name": "own prompts", "version": 1}
    assert shared.result["sentence"] == (
        "Draft 2 is 41 % faster than no MTP for own prompts, beside [address], and so on."
    )
    assert anonymize(SESSION).workload == SESSION.workload


@pytest.mark.parametrize(
    ("of_what", "asked", "left"),
    [
        (", fill", ("parser", "parser at 4096"), ("prompt 1", "prompt 1 at 4096")),
        (", context", ("parser",), ("prompt 1",)),
        (", streams", ("parser 1", "query 2"), ("prompt 1 1", "prompt 2 2")),
        (", load", ("parser",), ("prompt 1",)),
    ],
)
def test_workloads_of_curves_and_loads_keep_their_kind(
    of_what: str, asked: tuple[str, ...], left: tuple[str, ...]
) -> None:
    runs = tuple(run(50.0, prompt=prompt) for prompt in asked)
    shipped = anonymize(replace(SESSION, workload=f"code{of_what}", runs=runs))
    assert shipped.workload == f"code{of_what}"
    assert [each.prompt for each in shipped.runs] == list(asked)
    own = anonymize(replace(SESSION, workload=f"divorce{of_what}", runs=runs))
    assert own.workload == f"own prompts{of_what}"
    assert tuple(each.prompt for each in own.runs) == left


def test_prompts_of_a_changed_workload_are_hidden() -> None:
    shared = anonymize(replace(SESSION, runs=(run(50.0), run(50.0, prompt="my divorce"))))
    assert shared.workload == "own prompts"
    assert [each.prompt for each in shared.runs] == ["prompt 1", "prompt 2"]
    assert shared.result["sentence"].endswith(" for own prompts.")


@pytest.mark.parametrize("name", ["model", "on", "system", "engine", "draft"])
def test_only_names_of_prompts_are_replaced(name: str) -> None:
    """Whatever the user's files are called, all else stays."""
    result = {
        "mtp": "on",
        "model": "A",
        "draft": 2,
        "because": f"It is forlorn, therefor {name}, and for {name}s too.",
        "sentence": "No.",
    }
    shared = anonymize(
        replace(SESSION, workload=name, runs=(run(50.0, prompt="2"), run(9.0, prompt="1")), result=result)
    )
    assert shared.result == result
    assert shared.environment.engine == ENVIRONMENT.engine
    assert [each.prompt for each in shared.runs] == ["prompt 1", "prompt 2"]


def test_the_name_of_the_model_file_is_not_shared() -> None:
    environment = replace(ENVIRONMENT, model=replace(ENVIRONMENT.model, file="for-my-divorce.gguf"))
    assert anonymize(replace(SESSION, environment=environment)).environment.model.file is None


async def test_a_shared_measurement_of_this_machine_has_no_personal_data(demo_model: Path, tmp_path: Path) -> None:
    launch = await prepare_launch(ServeOptions(demo_model, built_in=True), Endpoint(8080, "key"))
    machine = read_machine()
    session = replace(SESSION, environment=Environment.for_launch(launch, machine))
    text = session_json(anonymize(session))
    for secret in (
        platform.node(),
        str(Path.home()),
        str(demo_model),
        str(tmp_path),
        *(gpu.id for gpu in machine.gpus),
    ):
        assert len(secret) < 3 or secret not in text
    user = getpass.getuser()
    assert user in ("root", "user", "admin") or user not in text
    shared = json.loads(text)["environment"]
    assert shared["engine"] == "built-in"
    assert shared["model"]["name"]
    assert shared["memory_bytes"] == machine.host.memory_bytes


def test_a_shared_file_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(session_json(SESSION), "utf-8")
    assert read_session_file(file) == SESSION
    file.write_text(session_json(anonymize(SESSION)), "utf-8")
    assert read_session_file(file) == anonymize(SESSION)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\0", '{"format": "mtp-launcher measurement", "version": 2}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(ResultUnreadable, match="not a shared measurement"):
        read_session_file(file)


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResultMissing):
        read_session_file(tmp_path / "nothing.json")
    with pytest.raises(ResultUnreadable, match="cannot be read"):
        read_session_file(tmp_path)


def test_every_figure_of_a_run_has_its_column() -> None:
    names = {each.name for each in fields(Run)} - {"acceptance"}
    assert names == set(RUN_COLUMNS) - {"drafted", "accepted", "by_position"}
    head = as_csv(SESSION).splitlines()[0].split(",")
    assert names - {"settings"} <= set(head)


def test_csv_has_a_line_for_each_run() -> None:
    lines = as_csv(replace(SESSION, runs=(*SESSION.runs, run(1.0, prompt="=cmd|'x'"), run(2.0, prompt='a, "b"\nc'))))
    assert "'=cmd|'x'" in lines
    head, first, *rest = lines.split("\r\n")
    assert head.endswith("drafted_at_1,drafted_at_2,accepted_at_1,accepted_at_2,set_draft,set_kv")
    assert first.startswith("parser,5000.0,2.5,40,0,250,900.0,50.0,0.25,")
    assert first.endswith(",,,,,,,0,q8_0")
    assert rest[2].endswith("200,150,100,100,90,60,2,q8_0")
    assert '"a, ""b""\nc"' in rest[-2]


def test_markdown_has_figures_and_their_source() -> None:
    text = as_markdown(SESSION)
    assert text.startswith(
        "# tune of Qwen3.6-35B-A3B UD-Q3_K_XL, code\n\nDraft 2 is 41 % faster than no MTP for code.\n"
    )
    assert "| MTP off | 50.0 ± 2.5 | 3 | 1.00 |  | 900 t/s | 0.25 s |  | baseline |" in text
    assert "| draft 2 | 70.2 ± 3.1 | 3 (+1 not counted) | 1.26 | 75 % | 900 t/s | 0.25 s | 0.16 J/token | 1.40" in text
    assert "All with kv q8_0." in text
    assert "- GPU: NVIDIA GeForce RTX 4090, 24 GiB, driver 580.82" in text
    assert "- Measured: 2026-11-06 with MTP Launcher 1.0" in text


def test_markdown_of_several_prompts_has_a_table_by_prompt() -> None:
    text = as_markdown(replace(SESSION, runs=(run(50.0), run(40.0, prompt="a|b"), run(70.0, ON))))
    assert "| TOKENS/S | MTP off | draft 2 |" in text
    assert "| a\\|b | 40.0 |  |" in text


def test_markdown_without_measurements_is_a_report() -> None:
    text = as_markdown(replace(SESSION, runs=(), result={}))
    assert text.startswith("# tune of")
    assert "±" not in text


def test_the_file_extension_chooses_the_format(tmp_path: Path) -> None:
    assert writer_for(Path("x.MD")) is as_markdown
    assert writer_for(Path("x.csv")) is as_csv
    assert writer_for(Path("x.json")) is session_json
    with pytest.raises(BadOption):
        writer_for(Path("x.pdf"))
