"""The machine, the criteria and the settings that a command line gives by the options of `machine_options`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.app.planning.planner import MachineDescription
from launcher.base.errors import BadOption
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.serve_options import ServeOptions
from launcher.models.drafters import find_drafter, is_drafting, with_usual_length
from launcher.models.plan import PlanCriteria
from launcher.models.server_settings import ROWS, to_fields

if TYPE_CHECKING:
    from launcher.models.server_settings import Value


def given_settings(options: argparse.Namespace) -> dict[str, Value]:
    """Return the server settings given in the options."""
    return {name: value for name in ROWS if (value := getattr(options, name)) is not None}


def read_machine_description(options: argparse.Namespace) -> MachineDescription:
    """Return the machine that the options describe."""
    return MachineDescription(
        gpu=options.gpu,
        gpu_memory_gib=options.gpu_memory or (),
        unified_memory_gib=options.unified_memory,
        free_mib=options.free_memory,
        headless=options.headless,
        host_memory_gib=options.host_memory,
        host_bandwidth_gb_s=options.host_bandwidth,
        backend=options.backend,
        wake=options.wake,
        rpc=options.rpc,
    )


def read_plan_criteria(options: argparse.Namespace) -> PlanCriteria:
    """Return the criteria for plans that the options give. Raises BadOption if they contradict each other."""
    if options.no_mtp and is_drafting(options.draft):
        raise BadOption("--no-mtp and --draft cannot be combined.", "Give one of them.")
    given = given_settings(options) | ({"draft": 0} if options.no_mtp else {})
    given = with_usual_length(given, find_drafter(str(given["drafter"])) if "drafter" in given else None)
    return PlanCriteria(
        model=getattr(options, "model", None),
        intent=getattr(options, "intent", "balanced"),
        quant=getattr(options, "quant", None),
        vision=getattr(options, "vision", False),
        **to_fields(given),
    )


def make_serve_options(options: argparse.Namespace, model: Path) -> ServeOptions:
    """Return the options to serve a model file with, except for server settings."""
    built_in = str(options.engine) == BUILT_IN
    return ServeOptions(
        model=model,
        engine=None if built_in else options.engine,
        built_in=built_in,
        draft_file=getattr(options, "draft_model", None),
        mmproj=getattr(options, "mmproj", None),
        chat_template_file=getattr(options, "chat_template_file", None),
        rpc=getattr(options, "rpc", ()),
        extra=tuple(getattr(options, "extra", ())),
    )
