"""Deliberate faults: settings with which an engine fails, and the codes of the expected diagnosis."""

import contextlib
import json
import random
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BUILT_IN = "built-in"


@dataclass(frozen=True)
class Case:
    """A deliberate fault: the command to start, and the codes of the expected diagnosis."""

    name: str
    codes: tuple[str, ...]
    arguments: list[str]
    engines: tuple[str, ...] = ("cpu", BUILT_IN, "vulkan")
    environment: dict[str, str] = field(default_factory=dict)
    limit_mib: int = 0
    send_requests: Callable[[str], None] | None = None
    end_signal: int = signal.SIGTERM


MEMORY = (
    "cuda_out_of_memory",
    "weights_too_big",
    "kv_cache_too_big",
    "recurrent_state_too_big",
    "compute_buffer_too_big",
    "vulkan_out_of_memory",
)


def draw_cases(rng: random.Random, models: Path, busy_port: int) -> list[Case]:
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
    llama_servers = ("cpu", "vulkan")
    return [
        Case("unknown flag", ("unknown_flag",), [*model("demo.gguf"), wrong_flag, "4"]),
        Case("value", ("bad_value",), [*model("demo.gguf"), *wrong_value], llama_servers),
        Case(
            "cache type",
            ("bad_value",),
            [*model("demo.gguf"), "-ctk", rng.choice(("q3_0", "turbo3", "fp8"))],
            llama_servers,
        ),
        Case("speculative type", ("bad_value",), [*model("demo.gguf"), "--spec-type", "mtp"], llama_servers),
        Case(
            "device", ("bad_value",), [*model("demo.gguf"), "--device", rng.choice(("CUDA0", "ROCm0"))], llama_servers
        ),
        Case("removed flag", ("removed_flag",), [*model("demo.gguf"), *removed], llama_servers),
        Case(
            "variable",
            ("bad_variable",),
            model("demo.gguf"),
            llama_servers,
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
            llama_servers,
        ),
        Case("no head", ("no_mtp_head",), [*model("nomtp.gguf"), *mtp]),
        Case("template", ("chat_template",), [*model("bad-template.gguf"), "--jinja"], llama_servers),
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
            llama_servers,
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
        ),
        Case("offline", ("offline_missing",), ["-hf", "someone/nothing-GGUF", "--offline"], llama_servers),
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
            "no GPU",
            ("no_gpu", "backend_not_loaded"),
            [*model("demo.gguf"), "-ngl", "99"],
            ("cpu",),
            send_requests=ask_shortly,
        ),
        Case(
            "prompt too long",
            ("context_exceeded",),
            [*model("demo.gguf"), *maybe_mtp, "-c", "1024", "-np", "1"],
            send_requests=_ask_at_length,
        ),
        Case(
            "pool full",
            ("kv_pool_full", "draft_pool_full", "context_exceeded"),
            [*model("demo.gguf"), "-c", "512", "-np", "4", "-kvu"],
            ("cpu",),
            send_requests=_ask_together,
        ),
        Case(
            "killed",
            ("killed",),
            [*model("demo.gguf"), *maybe_mtp],
            send_requests=ask_shortly,
            end_signal=signal.SIGKILL,
        ),
        Case(
            "lock",
            ("mlock_failed",),
            [*model("demo.gguf"), "--load-mode", "mlock"],
            llama_servers,
            send_requests=ask_shortly,
        ),
        Case(
            "draft of another vocabulary",
            ("draft_mismatch", "speculation_failed"),
            [*model("demo.gguf"), "-md", str(models / "other-words.gguf"), "--spec-type", "draft-simple"],
            ("cpu",),
        ),
        Case("wrong rates", ("bad_value",), [*model("demo.gguf"), *mtp, "--spec-synth-rates", "0.5"], ()),
    ]


def draw_combined_cases(rng: random.Random, models: Path, busy_port: int) -> list[Case]:
    """Return cases with two faults each. The expected diagnosis is that of the fault that the engine meets first."""
    port = ["--port", str(busy_port)]
    mtp = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"]
    layers = ["-ngl", str(rng.choice((20, 99)))]
    cache = ["-ctv", rng.choice(("q8_0", "q4_0")), "-fa", "off"]
    files = {
        "page.gguf": "not_gguf",
        "two-thirds.gguf": "model_truncated",
        "new-architecture.gguf": "architecture_unknown",
        "moved.gguf": "model_unreadable",
        "new-quant.gguf": "quant_unknown",
        "mmproj.gguf": "projector_as_model",
    }
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
            send_requests=_ask_at_length,
            end_signal=signal.SIGKILL,
        )
    )
    return made


def _post(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with contextlib.suppress(urllib.error.URLError, TimeoutError, ConnectionError):
        urllib.request.urlopen(request, timeout=15).read()


def ask_shortly(url: str) -> None:
    """Let the server at `url` generate some tokens."""
    _post(url, {"prompt": "What is MTP?", "n_predict": 12})


def _ask_at_length(url: str) -> None:
    ask_shortly(url)
    _post(url, {"prompt": "What is MTP? " * 900, "n_predict": 8})
    ask_shortly(url)


def _ask_together(url: str) -> None:
    body: dict[str, object] = {"prompt": "What is MTP? " * 20, "n_predict": 400, "ignore_eos": True}
    threads = [threading.Thread(target=_post, args=(url, body)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
