"""Writes docs/plans.md: the plan of each model of the catalogue on machines of many sizes.

`python -m tools.plan_table` prints the document; with --write it replaces docs/plans.md.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import Situation, describe_machine, describe_unified_machine

DOCUMENT = Path(__file__).parent.parent / "docs" / "plans.md"
_HOST_GIB = 32
_SIZES = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 48, 80, 96)
_HEAD = f"""# Plans by model and machine

Written by `python -m tools.plan_table --write`: what `mtp-launcher plan --model ID` recommends on a described machine
with a desktop and {_HOST_GIB} GiB of host memory (unified memory: nothing beside it), before any header is read. Speeds
are forecasts at a short context for a typical card of that size:
"""
_RECOMMENDED = """
The recommended model for each machine comes first. A "poor" plan loses so much that other models come before it: it has
very few bits a weight, a short context, or hardly any free memory. If a larger card gets a smaller file than a smaller
card, the larger card is slower, or it holds experts that the smaller card leaves in host memory.
"""


def describe_machines() -> dict[str, Situation]:
    """Return the machines of the table by name."""
    machines = {f"{size} GB": describe_machine(size, host_gib=_HOST_GIB) for size in _SIZES}
    machines["24+12 GB"] = describe_machine((24, 12), host_gib=_HOST_GIB)
    machines["24+24 GB"] = describe_machine((24, 24), host_gib=_HOST_GIB)
    machines["128 GB unified"] = describe_unified_machine(128)
    return machines


def format_document() -> Iterator[str]:
    """Yield the lines of the document."""
    catalogue, machines = Catalogue(tuple(shipped_models())), describe_machines()
    yield _HEAD
    yield "| Machine | Typical card |"
    yield "|---|---|"
    for name, situation in machines.items():
        yield f"| {name} | {' + '.join(card.name for card in situation.cards)} |"
    yield _RECOMMENDED
    yield from _table_head("Machine", "Model")
    recommended = {name: make_plans(catalogue, situation, PlanCriteria())[0] for name, situation in machines.items()}
    for name, plan in recommended.items():
        yield _row(name, plan.entry.id, plan)
    for entry in catalogue.models:
        if entry.id == "demo":
            continue
        yield f"\n## {entry.name} (`{entry.id}`)\n"
        if entry.geometry is None:
            name = f"{entry.id}:{entry.files[0].quant}"
            yield f"Its layout is unknown until `mtp-launcher estimate {name}` reads its header."
            continue
        yield from _table_head("Machine", "Fit")
        for name, situation in machines.items():
            plan = make_plans(catalogue, situation, PlanCriteria(model=entry.id))[0]
            other = f"instead: {recommended[name].entry.id} {recommended[name].file.quant}"
            if plan.status is Status.TOO_BIG:
                yield f"| {name} | TOO BIG | | {other} | | | | | |"
            elif plan.group:
                yield _row(name, f"{plan.status.value}, poor; {other}", plan)
            else:
                yield _row(name, plan.status.value, plan)


def _table_head(first: str, second: str) -> Iterator[str]:
    yield f"| {first} | {second} | File | Context | KV | Draft | Experts on CPU | Tokens/s | MiB free |"
    yield "|---|---|---|--:|---|--:|--:|--:|--:|"


def _row(first: str, second: str, plan: Plan) -> str:
    setting = plan.setting
    rate = f"{plan.forecast.tokens_per_second:.0f}" if plan.forecast else "-"
    cells = (
        first,
        second,
        plan.file.quant,
        f"{setting.context:,}",
        setting.kv,
        setting.draft or "off",
        f"{setting.n_cpu_moe}, cache {setting.moe_cache_mib:,}" if setting.moe_cache_mib else setting.n_cpu_moe or "",
        rate,
        f"{plan.free_mib - plan.needed_mib:,}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Print or write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace docs/plans.md")
    text = "\n".join(format_document()) + "\n"
    if parser.parse_args().write:
        DOCUMENT.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
