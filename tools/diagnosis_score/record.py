"""Records logs of failing engines: which fault is at work is known, because it is made on purpose.

    python -m tools.diagnosis_score.record --seed 7 --count 48 --models FOLDER --out FOLDER
        [--vulkan llama-server-on-a-small-card ...] [--cpu llama-server]

FOLDER of models has the demo (demo.gguf), the same without its head (nomtp.gguf) and large ones for `--vulkan`.
Settings that have nothing to do with the fault are drawn at random, logs are mixed with what an earlier run of the same
server wrote, and the labels (labels.toml) are written by the same stroke. What a fault leads to is not looked at.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.diagnosis_score.files import make_all

BUILT_IN = "built-in"
_TIME_S = 40


@dataclass(frozen=True)
class Case:
    """A fault on purpose: what to start, and which codes name it."""

    name: str
    codes: tuple[str, ...]
    arguments: list[str]
    engines: tuple[str, ...] = ("cpu", BUILT_IN, "vulkan")
    environment: dict[str, str] = field(default_factory=dict)
    limit_mib: int = 0
    talk: Callable[[str], None] | None = None
    end: int = signal.SIGTERM


MEMORY = ("cuda_out_of_memory", "weights_too_big", "kv_cache_too_big", "compute_buffer_too_big", "vulkan_out_of_memory")


def cases(rng: random.Random, models: Path, busy_port: int) -> list[Case]:
    """Return every fault once, with values drawn at random."""

    def model(name: str) -> list[str]:
        return ["-m", str(models / name)]

    mtp = ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(rng.choice((1, 2, 3, 4)))]
    maybe_mtp = rng.choice(([], mtp))
    big = rng.choice([path.name for path in models.glob("q*moe*.gguf")] or ["demo.gguf"])
    dense = rng.choice([path.name for path in models.glob("qwen35-*.gguf")] or ["demo.gguf"])
    large = str(rng.choice((131_072, 200_000, 262_144)))
    wrong_flag = rng.choice(("--turbo", "--ctx-sizes", "--draft-tokens", "--gpu", "--mtp", "--n-gpu"))
    wrong_value = rng.choice((["-c", "many"], ["--spec-draft-n-max", "two"], ["--parallel", "x1"], ["-t", "all"]))
    removed = rng.choice((["--draft-max", "3"], ["--draft", "2"], ["--draft-min", "1"]))
    debian = ("cpu", "vulkan")
    return [
        Case("unknown flag", ("unknown_flag",), [*model("demo.gguf"), wrong_flag, "4"]),
        Case("value", ("bad_value",), [*model("demo.gguf"), *wrong_value], debian),
        Case(
            "cache type", ("bad_value",), [*model("demo.gguf"), "-ctk", rng.choice(("q3_0", "turbo3", "fp8"))], debian
        ),
        Case("speculative type", ("bad_value",), [*model("demo.gguf"), "--spec-type", "mtp"], debian),
        Case("device", ("bad_value",), [*model("demo.gguf"), "--device", rng.choice(("CUDA0", "ROCm0"))], debian),
        Case("removed flag", ("removed_flag",), [*model("demo.gguf"), *removed], debian),
        Case(
            "variable",
            ("bad_variable",),
            model("demo.gguf"),
            debian,
            {rng.choice(("LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_PARALLEL")): "lots"},
        ),
        Case("port", ("port_busy",), [*model("demo.gguf"), *maybe_mtp, "--port", str(busy_port)]),
        Case("file gone", ("model_unreadable",), [*model("moved.gguf"), *maybe_mtp]),
        Case("folder", ("model_unreadable", "not_gguf"), ["-m", str(models)]),
        *(
            Case(name, ("not_gguf",), [*model(name), *maybe_mtp])
            for name in ("page.gguf", "pointer.gguf", "empty.gguf")
        ),
        *(
            Case(name, ("model_truncated",), [*model(name), *maybe_mtp])
            for name in ("two-thirds.gguf", "last-bytes-missing.gguf", "header-only.gguf", "tiny-rest.gguf")
        ),
        *(Case(name, ("gguf_version",), model(name)) for name in ("version-1.gguf", "version-9.gguf")),
        Case("architecture", ("architecture_unknown",), [*model("new-architecture.gguf"), *maybe_mtp]),
        Case("tokenizer", ("tokenizer_unknown",), [*model("new-tokenizer.gguf"), *maybe_mtp]),
        *(Case(name, ("quant_unknown",), [*model(name), *mtp]) for name in ("new-quant.gguf", "fork-quant.gguf")),
        Case("head renamed", ("head_missing", "tensors_wrong"), [*model("head-renamed.gguf"), *mtp]),
        Case("tensor renamed", ("tensors_wrong",), [*model("tensor-renamed.gguf"), *mtp]),
        Case("shape", ("tensors_wrong", "model_truncated"), [*model("wrong-shape.gguf"), *maybe_mtp]),
        Case("split without rest", ("split_incomplete",), model("alone-00001-of-00003.gguf")),
        Case("second part", ("split_incomplete",), [*model("second-00002-of-00003.gguf"), *mtp]),
        Case("projector as model", ("projector_as_model",), [*model("mmproj.gguf"), *maybe_mtp]),
        Case(
            "projector of another kind",
            ("projector_mismatch",),
            [*model("demo.gguf"), "--mmproj", str(models / "mmproj.gguf")],
            debian,
        ),
        Case("no head", ("no_mtp_head",), [*model("nomtp.gguf"), *mtp]),
        Case("template", ("chat_template",), [*model("bad-template.gguf"), "--jinja"], debian),
        Case("KV types", ("kv_types",), [*model("demo.gguf"), "-ctv", "q8_0", "-fa", "off"]),
        Case(
            "KV block",
            ("kv_types",),
            [*model("demo.gguf"), "-ctk", "q4_0", "-ctv", "f16", "-fa", "on", "-dev", "none"],
            (),
        ),
        Case(
            "no network",
            ("download_failed",),
            ["-hf", "someone/nothing-GGUF:Q4_K_M"],
            debian,
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
        ),
        Case("offline", ("offline_missing",), ["-hf", "someone/nothing-GGUF", "--offline"], debian),
        Case(
            "KV memory",
            MEMORY,
            [*model("demo.gguf"), *maybe_mtp, "-c", "3000000", "--fit", "off"],
            ("cpu", BUILT_IN),
            limit_mib=2_200,
        ),
        Case("weights on a card", MEMORY, [*model(big), *maybe_mtp, "-c", "4096", "-ngl", "99"], ("vulkan",)),
        Case(
            "context on a card",
            MEMORY,
            [*model("qwen35-9b-q4_k_m.gguf"), *mtp, "-c", large, "-ngl", "99", "--fit", "off"],
            ("vulkan",),
        ),
        Case("dense on a card", MEMORY, [*model(dense), "-c", large, "-ngl", "99", "-fa", "on"], ("vulkan",)),
        Case(
            "ubatch on a card",
            MEMORY,
            [*model("qwen35-9b-q4_k_m.gguf"), "-c", "8192", "-b", "8192", "-ub", "8192", "-ngl", "99", "-fa", "off"],
            ("vulkan",),
        ),
        Case("row split", ("split_mode_row",), [*model("demo.gguf"), "-sm", "row", "-ngl", "99"], ("vulkan",)),
        Case("tensor split", ("split_mode_tensor",), [*model("demo.gguf"), "-sm", "tensor", "-ngl", "99"], ("vulkan",)),
        Case(
            "no GPU", ("no_gpu", "backend_not_loaded"), [*model("demo.gguf"), "-ngl", "99"], ("cpu",), talk=_ask_shortly
        ),
        Case(
            "prompt too long",
            ("context_exceeded",),
            [*model("demo.gguf"), *maybe_mtp, "-c", "1024", "-np", "1"],
            talk=_ask_at_length,
        ),
        Case(
            "pool full",
            ("kv_pool_full", "draft_pool_full", "context_exceeded"),
            [*model("demo.gguf"), "-c", "512", "-np", "4", "-kvu"],
            ("cpu",),
            talk=_ask_together,
        ),
        Case("killed", ("killed",), [*model("demo.gguf"), *maybe_mtp], talk=_ask_shortly, end=signal.SIGKILL),
        Case("lock", ("mlock_failed",), [*model("demo.gguf"), "--load-mode", "mlock"], debian, talk=_ask_shortly),
        Case(
            "draft of another vocabulary",
            ("draft_mismatch", "speculation_failed"),
            [*model("demo.gguf"), "-md", str(models / "other-words.gguf"), "--spec-type", "draft-simple"],
            ("cpu",),
        ),
        Case("wrong rates", ("bad_value",), [*model("demo.gguf"), *mtp, "--spec-synth-rates", "0.5"], ()),
    ]


def combined(rng: random.Random, models: Path, busy_port: int) -> list[Case]:
    """Return cases with two things wrong at a time, and the one that the engine meets first."""
    port = ["--port", str(busy_port)]
    mtp = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"]
    layers = ["-ngl", str(rng.choice((20, 99)))]
    cache = ["-ctv", rng.choice(("q8_0", "q4_0")), "-fa", "off"]
    files = {"page.gguf": "not_gguf", "two-thirds.gguf": "model_truncated", "new-architecture.gguf": "architecture_unknown",
             "moved.gguf": "model_unreadable", "new-quant.gguf": "quant_unknown", "mmproj.gguf": "projector_as_model"}  # fmt: skip
    made = []
    for name, code in files.items():
        model = ["-m", str(models / name)]
        second = rng.choice((layers, cache, mtp, [*mtp, *layers], [*cache, "--mmproj", str(models / "mmproj.gguf")]))
        made.append(Case(f"{name} and more", (code,), [*model, *second], ("cpu", "vulkan")))
        made.append(Case(f"{name} and a port", ("port_busy",), [*model, *port, *rng.choice(([], mtp, layers))]))
        made.append(
            Case(f"{name} and a flag", ("unknown_flag",), [*model, *mtp, "--no-such-flag", *port], ("cpu", "vulkan"))
        )
    headless = ["-m", str(models / "nomtp.gguf"), *mtp]
    made.append(Case("no head and KV types", ("kv_types",), [*headless, *cache]))
    made.append(Case("no head and no GPU", ("no_mtp_head",), [*headless, *layers], ("cpu",)))
    made.append(
        Case(
            "no head and a projector",
            ("no_mtp_head", "projector_mismatch"),
            [*headless, "--mmproj", str(models / "mmproj.gguf")],
            ("cpu",),
        )
    )
    big = ["-m", str(models / "qwen35-27b-q4_k_m.gguf"), "-ngl", "99"]
    made.append(Case("too big and MTP", MEMORY, [*big, *mtp, "-c", "262144"], ("vulkan",)))
    made.append(Case("too big and KV types", MEMORY, [*big, *cache, "-c", "65536"], ("vulkan",)))
    made.append(
        Case(
            "long prompt and killed",
            ("killed",),
            ["-m", str(models / "demo.gguf"), "-c", "1024", "-np", "1"],
            talk=_ask_at_length,
            end=signal.SIGKILL,
        )
    )
    return made


def _post(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with contextlib.suppress(urllib.error.URLError, TimeoutError, ConnectionError):
        urllib.request.urlopen(request, timeout=15).read()


def _ask_shortly(url: str) -> None:
    _post(url, {"prompt": "What is MTP?", "n_predict": 12})


def _ask_at_length(url: str) -> None:
    _ask_shortly(url)
    _post(url, {"prompt": "What is MTP? " * 900, "n_predict": 8})
    _ask_shortly(url)


def _ask_together(url: str) -> None:
    body: dict[str, object] = {"prompt": "What is MTP? " * 20, "n_predict": 400, "ignore_eos": True}
    threads = [threading.Thread(target=_post, args=(url, body)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _harmless(rng: random.Random, engine: str) -> list[str]:
    """Return settings that change nothing about any fault."""
    chosen = [["-lv", rng.choice(("3", "3", "4"))], ["-t", rng.choice("12")]]
    chosen += [
        flag
        for flag in (["--metrics"], ["--no-ui"], ["-a", "mine"], ["--cors-origins", "localhost"])
        if rng.random() < 0.4
    ]
    if engine != BUILT_IN and rng.random() < 0.25:
        chosen.append(["--log-jsonl"])
    rng.shuffle(chosen)
    return [word for words in chosen for word in words]


def _run(program: list[str], case: Case, port: int, folder: Path, extra: list[str]) -> tuple[str, int]:
    """Run one engine to its end, or until it has been talked to; return what it wrote and its exit code."""
    arguments = [*program, *case.arguments, *extra]
    if "--port" not in arguments:
        arguments += ["--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "HF_"))}
    environment |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "LLAMA_CACHE": str(folder), **case.environment}

    def limit() -> None:
        if case.limit_mib:
            resource.setrlimit(resource.RLIMIT_AS, (case.limit_mib << 20,) * 2)
        if case.name == "lock":
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65_536, 65_536))

    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            preexec_fn=limit,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        begun = time.monotonic()
        ready = False
        while process.poll() is None and time.monotonic() - begun < _TIME_S and not ready:
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                ready = urllib.request.urlopen(f"{url}/health", timeout=1).status == 200
        if ready and case.talk:
            case.talk(url)
        if process.poll() is None:
            os.killpg(process.pid, case.end)
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        return log.read().decode(errors="replace"), process.returncode


def _clean(text: str, models: Path, folder: Path, engine: list[str]) -> str:
    for path in (models, folder):
        text = text.replace(str(path), "/models" if path == models else "/home/user")
    text = re.sub(r"/[\w./+-]*/(lib[\w.-]+\.so[\w.]*)", r"/usr/lib/\1", text)
    return text.replace(engine[0], "llama-server")


def _dress(rng: random.Random, text: str) -> str:
    """Return a log as it comes out of what keeps it: a file of ours, the journal, docker compose, Windows."""
    style = rng.choice(("plain", "plain", "book", "journal", "compose", "windows", "colours"))
    lines = text.splitlines()
    if style == "book":
        lines = [
            f"2026-11-20 21:07:{number // 20 % 60:02},{number * 37 % 1000:03} {line}"
            for number, line in enumerate(lines)
        ]
    elif style == "journal":
        lines = [
            f"Nov 20 21:07:{number // 20 % 60:02} host llama-server[4711]: {line}" for number, line in enumerate(lines)
        ]
    elif style == "compose":
        lines = [f"llama-1  | {line}" for line in lines]
    elif style == "colours":
        lines = [re.sub(r"^(\S+ )([EW] )", "\x1b[34m\\1\x1b[0m\x1b[31m\\2", line) + "\x1b[0m" for line in lines]
    return ("\r\n" if style == "windows" else "\n").join([*lines, ""])


def _draw(rng: random.Random, models: Path, busy: int, *, two: bool) -> Iterator[Case]:
    """Yield faults for ever: all of them, again with other values, each time in another order."""
    while True:
        found = [case for case in (combined if two else cases)(rng, models, busy) if case.engines]
        rng.shuffle(found)
        yield from found


def main() -> None:
    """Record `--count` logs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--combined", action="store_true", help="two things wrong at a time")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vulkan", type=Path, action="append", default=[])
    parser.add_argument("--cpu", type=Path, action="append", default=[])
    options = parser.parse_args()
    rng = random.Random(options.seed)
    make_all(options.models / "demo.gguf", options.models)
    folder = options.models.parent / "work"
    folder.mkdir(exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    built_in = [sys.executable, "-P", str(Path(__file__).parents[2] / "launcher" / "engine" / "builtin.py")]
    programs = {"cpu": [[str(path)] for path in options.cpu], "vulkan": [[str(path)] for path in options.vulkan]}
    programs[BUILT_IN] = [built_in]
    labels = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        drawn = (
            case
            for case in _draw(rng, options.models, other.getsockname()[1], two=options.combined)
            if any(map(programs.get, case.engines))
        )
        for number, case in enumerate(itertools.islice(drawn, options.count), 1):
            kind = rng.choice([kind for kind in case.engines if programs[kind]])
            program = rng.choice(programs[kind])
            port = rng.randrange(20_000, 30_000)
            sound = Case("sound", (), ["-m", str(options.models / "demo.gguf")], talk=_ask_shortly)
            before = ""
            if rng.random() < 0.3:  # the log book goes on from one run to the next
                before, _ = _run(program, sound, port, folder, [])
            text, code = _run(program, case, port, folder, _harmless(rng, kind))
            name = f"{number:02}-{case.name.replace(' ', '-').removesuffix('.gguf')}-{kind}.log"
            (options.out / name).write_bytes(
                _dress(rng, _clean(before + text, options.models, folder, program)).encode()
            )
            labels.append(
                f'[["{name}"]]\n'.replace('[["', '["').replace('"]]', '"]')
                + f"codes = {list(case.codes)}\nexit_code = {code}\n"
            )
            print(name, code, len(before + text), flush=True)
    (options.out / "labels.toml").write_text("\n".join(labels).replace("'", '"'))


if __name__ == "__main__":
    main()
