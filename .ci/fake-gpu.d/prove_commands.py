"""Proofs of `doctor`, `plan` and `prove` with a llama-server on emulated cards; the server that a plan names is
started."""
# ruff: noqa: S101

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import FOLDER, engine, launcher, model, proof, records, run

USED_MIB = 400
FILES = {
    # For each file that plans name, a sparse model of the same geometry that is no larger.
    "UD-IQ3_S": "qwen35moe-35b-iq3_s",
    "UD-Q3_K_XL": "qwen35moe-35b-q3_k_xl",
    "UD-IQ4_XS": "qwen35moe-35b-iq4_xs",
    "UD-IQ4_NL": "qwen35moe-35b-iq4_xs",
    "UD-Q4_K_S": "qwen35moe-35b-iq4_xs",
    "UD-Q4_K_M": "qwen35moe-35b-q4_k_m",
    "UD-Q4_K_XL": "qwen35moe-35b-q4_k_m",
    "UD-Q5_K_S": "qwen35moe-35b-q4_k_m",
}

FITS, CHANGES = "no changes needed", "cannot meet free memory target"


def on_path(cards: str, *arguments: str) -> tuple[int, str]:
    """Run our command line with the llama-server that has `cards` on PATH."""
    before = os.environ["PATH"]
    with TemporaryDirectory() as folder:
        (Path(folder) / "llama-server").symlink_to(engine(cards))
        os.environ["PATH"] = f"{folder}:{before}"
        try:
            return launcher(*arguments)
        finally:
            os.environ["PATH"] = before


@proof("doctor names each card that the llama-server on PATH sees, with its memory")
def _doctor() -> str:
    for cards, sizes in (("16g", (16,)), ("2x12g", (12, 12)), ("24g+12g", (24, 12))):
        code, output = on_path(cards, "doctor", "--json")
        assert code == 0, output
        found = next(each for each in json.loads(output)["engines"] if each["place"].endswith("llama-server"))
        listed = [(device["name"], device["total_mib"], device["free_mib"]) for device in found["devices"]]
        assert listed == [(f"Vulkan{i}", 1_024 * gb, 1_024 * gb - USED_MIB) for i, gb in enumerate(sizes)], listed
    code, output = on_path("16g", "doctor")
    assert code == 0
    assert "NVIDIA Fake 16G" in output, output
    return "3 sets of cards"


@proof("the first plan for a card, started as it says, fits that card by the engine's own fit")
def _plans() -> str:
    plans = []
    for gb in (8, 10, 12, 16, 20, 24):
        described = ("--gpu-memory", str(gb), "--free-memory", str(1_024 * gb - USED_MIB), "--headless")
        code, output = launcher("plan", *described, "--host-memory", "64", "--backend", "vulkan", "--json")
        assert code == 0, output
        plan = json.loads(output)["plans"][0]
        assert plan["status"] == ("OFFLOADS" if gb <= 12 else "FITS"), plan
        assert plan["argv"][:3] == ["llama-server", "--model", plan["file"]], plan["argv"]
        name = FILES[plan["quant"]]
        flags = ("--model", str(model(name)), *plan["argv"][3:], "-fitt", str(plan["margin_mib"]))
        texts = (str(record.get("msg", "")) for record in records(f"{gb}g", *flags))
        verdict = next(text for text in texts if FITS in text or CHANGES in text)
        assert FITS in verdict, (plan, verdict)
        experts = f", {plan['n_cpu_moe']} on the host" if plan["n_cpu_moe"] else ""
        plans.append(f"{gb} GB {plan['quant']} {plan['ctx']:,} {plan['kv']}{experts}")
    return "; ".join(plans)


@proof("prove finds the planned memory in the engine's own figures, on a card that is not there")
def _prove() -> str:
    workload = Path(FOLDER, "short.toml")  # the renderer computes a few tokens a second
    prompt = '[[prompts]]\nname = "short"\ntext = "What is MTP?"\n'
    workload.write_text(f'name = "short"\ntitle = "Short"\nversion = 1\nsource = "this proof"\ntokens = 16\n{prompt}')
    words = ("prove", "demo", "--engine", str(engine("16g")), "--minutes", "0.05", "--workload", str(workload))
    code, output = launcher(*words, "--json")
    found = {check["id"]: check for check in json.loads(output)["checks"]}
    assert code == 0, output
    assert found["plan-served"]["result"] == found["engine-ends"]["result"] == "confirmed", output
    assert found["plan-served"]["line"] == "docs/accuracy.md: compute buffers, Vulkan"
    assert found["memory-served"]["result"] == "not_tried", output
    return str(found["plan-served"]["measured"])


run()
