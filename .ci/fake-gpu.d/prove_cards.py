"""Proofs of the emulated cards: the engine lists them, they compute, they fill up, and the engine plans for them."""
# ruff: noqa: S101

import asyncio
import json
import re
import subprocess
import sys

from harness import engine, launcher, model, proof, read_memory_tables, records, run

from launcher.engine.builds.probe import list_devices, probe_engine
from tools.sparse_models.models import NAMES, n_bytes
from tools.sparse_models.models import model as made

GB = {"2x12g": [12, 12], "2x24g": [24, 24], "24g+12g": [24, 12]}
GB |= {f"{size}g": [size] for size in (8, 10, 12, 16, 20, 24, 32, 40, 48, 80)}
USED_MIB = 400
STATE_ALLOCATED = ("qwen35", "qwen35moe")
"""Families whose recurrent state the engine allocates already when it plans."""


@proof("every command lists its cards, with all their memory")
def _devices() -> str:
    for cards, sizes in GB.items():
        build = asyncio.run(probe_engine(engine(cards)))
        found = asyncio.run(list_devices(build))
        assert [device.total_mib for device in found] == [1024 * size for size in sizes], (cards, found)
        assert [device.free_mib for device in found] == [1024 * size - USED_MIB for size in sizes], (cards, found)
        assert [device.name for device in found] == [f"Vulkan{number}" for number in range(len(sizes))], (cards, found)
    return f"{len(GB)} commands, {build.version}"


@proof("a card computes: the demo model is served with MTP")
def _demo() -> str:
    command = [sys.executable, "-m", "launcher", "serve", "--model", "demo", "--engine", str(engine("8g")), "--json"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert json.loads(server.stdout.readline())["state"] == "ready"
            code, output = launcher("chat", "What is MTP?", "--max-tokens", "60", "--json")
        finally:
            server.terminate()
    assert code == 0, code
    reply = json.loads(output)
    assert reply["predicted_n"] == 60, reply
    assert reply["draft_n_accepted"] > 0, reply
    return f"{reply['draft_n_accepted']} of {reply['draft_n']} drafts accepted"


@proof("a card is full: a larger model is refused before it is read")
def _full() -> str:
    flags = ["--model", str(model("qwen35moe-35b-q4_k_m")), "-ngl", "99", "-fit", "off", "-c", "4096", "-np", "1"]
    command = [str(engine("8g")), *flags, "--load-mode", "none", "--port", "0", "--no-ui"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60
    )
    text = ended.stdout.decode("utf-8", "replace")
    assert ended.returncode == 1, ended.returncode
    assert "unable to allocate Vulkan0 buffer" in text, text[-2000:]
    return "unable to allocate Vulkan0 buffer"


@proof("memory of the host that the engine pins for the card is not the card's")
def _pinned() -> str:
    flags = ["-m", str(model("qwen35moe-35b-iq3_s")), "-ngl", "99", "-fit", "off", "-c", "4096", "-np", "1"]
    said: list[str] = []
    for record in records("12g", *flags, "-ncmoe", "16", "--load-mode", "none"):
        said.append(str(record.get("msg", "")))
        if found := re.search(r"Vulkan_Host model buffer size = +([\d.]+) MiB", said[-1]):
            break
    assert found is not None, "".join(said[-10:])
    assert not any("Failed to allocate pinned memory" in text for text in said), found[0]
    return found[0]


@proof("the engine plans every sparse model, and its weights are the tensors' bytes")
def _models() -> str:
    plans = 0
    for name in NAMES:
        shape = made(name)
        if shape.architecture == "gemma4-assistant":  # a draft model cannot be served alone
            continue
        head = "nextn_predict_layers" in shape.metadata
        mtp = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"] if head else []
        flags = ["-m", str(model(name)), "-ngl", "99", "-c", "32768", "-np", "1", "-fa", "on", *mtp]
        tables = read_memory_tables("32g", *flags, tables=2 if head else 1)
        device, host = tables[0]
        input_mib = n_bytes(*shape.tensors["token_embd.weight"]) / 2**20
        tied = "output.weight" not in shape.tensors  # the output matrix is then the embedding, so the card has it, too
        weights_mib = shape.tensor_bytes / 2**20 - (0 if tied else input_mib)
        assert abs(device["model"] - weights_mib) <= 1.5, (name, device, weights_mib)
        assert abs(host["model"] - input_mib) <= 2.5, (name, host, input_mib)
        assert device["total"] == 32 * 1024, (name, device)
        state = shape.architecture in STATE_ALLOCATED
        assert (32 * 1024 - USED_MIB - device["free"] > 10) is state, (name, device)
        plans += len(tables)
    return f"{plans} tables of {len(NAMES) - 1} models"


run()
