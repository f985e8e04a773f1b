"""The server settings: the knobs of one llama-server, each declared once, as a row of `ServerSettings`.

Command-line options, `--set`, JSON, saved settings, the engine's arguments, the sliders, the values that a tune tries
and those that the memory estimate counts are all derived from these rows. It is in models/ because that is the lowest
package that needs them: plans and memory estimates use the same settings as servers.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from launcher.base.errors import BadOption
from launcher.base.messages import FaceName, as_message, mark, message, suggest_names
from launcher.base.units import TOKEN_UNITS, parse_amount
from launcher.models.drafters import (
    DRAFTERS,
    LONGEST_DRAFT,
    MTP,
    MTP_OFF,
    SPEC_TYPES,
    DraftChoice,
    Drafter,
    Source,
    choose_drafts,
    find_drafter,
    usable_drafters,
)

Value = bool | int | float | str | None
"""The value of a setting; None leaves it open. A switch is True or False."""
Kind = Literal["tokens", "count", "mib", "share", "choice", "switch", "shares"]
"""The kind of a value: a number of tokens, of things, of MiB, a share from 0 to 1, one of several names, on or off, or
shares such as 3,1."""
Memory = Literal["", "formula", "gpu_mib"]
"""Effect on the memory estimate: none, through the formula, or its value is MiB that are counted in full on the GPU."""
Likely = Literal[
    "", "on_gpu", "several_gpus", "several_drafters", "offloaded", "on_processor", "long_answers", "sampled"
]
"""Condition for a tune to try it unasked: never, a model on the GPU, on several, experts on the host, ..."""

_FILES_AND_HEADS: tuple[Source, ...] = ("head", "file")
LEFT_OPEN = ("default", "auto", "none")
"""Words with which a user leaves a setting open."""
_MIB = {"": 1, "M": 1, "MB": 1, "MIB": 1, "G": 1_024, "GB": 1_024, "GIB": 1_024}
_SHARES = re.compile(r"\d+(\.\d+)?(,\d+(\.\d+)?)*")
_EXPECTED: Mapping[Kind, str] = {
    "tokens": message("It is a number of tokens, such as 32768 or 32K."),
    "count": message("It is a whole number."),
    "mib": message("It is a number of MiB, such as 2048, or 2GB."),
    "share": message("It is a number from 0 to 1, such as 0.75."),
    "switch": message("It is on or off."),
    "shares": message("It is one number for each GPU, such as 3,1."),
}


@dataclass(frozen=True, kw_only=True)
class ServerSetting:
    """The declaration of one server setting.

    - `name`: key in JSON and for `--set`; `attribute`: field in `ServerSettings`.
    - `flags`: llama-server's arguments that take the value; of a switch, the first turns it on and the second off. An
      engine supports the setting if it has these flags.
    - `usual`: llama-server's default. A setting with that value is left out of the arguments, unless `always`.
    - `resolved`: the launcher chooses a value at each start if the user leaves it open.
    - `help`, `default`: texts for the command line's help; `label`, `tip`: texts in the window; `steps`: values that
      its slider offers besides the current one.
    - `tuned`: values for a tune to try; with `likely` it tries them unasked.
    - `drafting`: sources of the drafters to which it applies (models/drafters.py), () if it is not about drafts: it is
      meaningless while none of them drafts; `of_experts`: meaningless if no experts can be on the host.
    - `choices`: accepted words of a choice. Without them the engine decides, as for KV cache types (`memory.check_kv`).
    """

    name: str
    kind: Kind
    flags: tuple[str, ...]
    help: str
    metavar: str = "N"
    default: str = ""
    label: str = ""
    tip: str = ""
    unit: str = ""
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()
    usual: Value = None
    always: bool = False
    resolved: bool = False
    can_be_open: bool = True
    memory: Memory = ""
    steps: tuple[int, ...] = ()
    tuned: tuple[Value, ...] | None = None
    likely: Likely = ""
    drafting: tuple[Source, ...] = ()
    of_experts: bool = False
    attribute: str = ""

    @cached_property
    def option(self) -> str:
        """Option on our command line, such as --n-cpu-moe."""
        return f"--{self.spelling}"

    @cached_property
    def spelling(self) -> str:
        """Name for users, with dashes."""
        return self.name.replace("_", "-")

    def check_value(self, value: Value) -> None:
        """Raise BadOption for a value that no engine accepts."""
        if value is None or (self.kind == "choice" and not self.choices):
            return
        if isinstance(value, float) and self.kind != "share":
            raise BadOption(
                message("{value} is not a value for {spelling}.", value=value, spelling=self.spelling),
                _EXPECTED["count"],
                option=self.option,
            )
        if self.choices:
            if value not in self.choices:
                raise BadOption(
                    message(
                        "{option} {value} must be one of {choices}.",
                        option=self.option,
                        value=value,
                        choices=", ".join(self.choices),
                    ),
                    message("Choose one."),
                    option=self.option,
                )
        elif isinstance(value, str):
            if self.kind != "shares" or not _SHARES.fullmatch(value):
                raise BadOption(
                    message("{value} is not a value for {spelling}.", value=value, spelling=self.spelling),
                    _EXPECTED[self.kind],
                    option=self.option,
                )
        elif self.kind != "switch" and not self.least <= value <= self.most:
            raise BadOption(
                message("{option} {value} is out of range.", option=self.option, value=value),
                message(
                    "It goes from {least} to {most}[ {unit}].",
                    least=self.least,
                    most=self.most,
                    unit=as_message(self.unit) if self.unit else None,
                ),
                option=self.option,
            )

    def parse_value(self, text: str) -> Value:
        """Parse a value written by a user. Raises BadOption if it is invalid."""
        word = text.strip().lower()
        if self.can_be_open and word in LEFT_OPEN and word not in self.choices:
            return None
        if self.kind == "choice":
            return word
        if self.kind == "shares" and _SHARES.fullmatch(word):
            return word
        if self.kind == "switch" and word in ("on", "true", "1", "off", "false", "0"):
            return word in ("on", "true", "1")
        units = {"tokens": TOKEN_UNITS, "mib": _MIB}.get(self.kind, {"": 1})
        number = None if self.kind in ("shares", "switch") else parse_amount(text, units)
        if number is None or (self.kind != "share" and number % 1):
            raise BadOption(
                message("{text} is not a value for {spelling}.", text=text, spelling=self.spelling),
                _EXPECTED[self.kind],
                setting=self.name,
            )
        return number if self.kind == "share" else int(number)

    def format_value(self, value: Value) -> str:
        """Return a value as text that `parse_value` accepts."""
        if value is None:
            return LEFT_OPEN[0]
        return ("on" if value else "off") if self.kind == "switch" else str(value)

    def cli_arguments(self, value: Value) -> tuple[str, ...]:
        """Return a value as arguments of our command line."""
        if self.kind == "switch":
            return (self.option if value else f"--no-{self.spelling}",)
        return self.option, str(value)

    def value_in(self, settings: "ServerSettings") -> Any:  # noqa: ANN401 -- as the field is declared
        """Return the value of this setting in `settings`."""
        return getattr(settings, self.attribute)

    def effective_in(self, settings: "ServerSettings") -> Any:  # noqa: ANN401 -- as the field is declared
        """Return the same, but the model's own drafter where none is chosen."""
        is_own = self.name == "drafter" and settings.chosen_drafter is None
        return settings.drafter_if_on.spec_type if is_own else self.value_in(settings)


def _setting_row(name: str, kind: Kind, flags: str, **details: Any) -> Any:  # noqa: ANN401 -- the field's own type
    return field(
        default=None, metadata={"row": ServerSetting(name=name, kind=kind, flags=tuple(flags.split()), **details)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one llama-server; None leaves one open, to the launcher or to the engine."""

    context: int | None = _setting_row(
        "ctx",
        "tokens",
        "--ctx-size",
        help="context in tokens, of all slots together: 131072, 128K",
        default="the longest that fits, or the plan's",
        label=mark("Context"),
        tip=mark("Context length in tokens, prompt and reply, shared by all slots. Flag: --ctx-size"),
        unit=mark("tokens"),
        least=256,
        most=2**24,
        always=True,
        resolved=True,
        memory="formula",
    )
    kv: str | None = _setting_row(
        "kv",
        "choice",
        "--cache-type-k --cache-type-v",
        help="type of the KV cache: f16, q8_0, q4_0, ...",
        metavar="TYPE",
        default="f16",
        label=mark("KV cache"),
        tip=mark("Number format of the KV cache. Flags: --cache-type-k, --cache-type-v"),
        usual="f16",
        memory="formula",
        tuned=(),
        likely="on_gpu",
    )
    draft: int | None = _setting_row(
        "draft",
        "count",
        "--spec-draft-n-max",
        help="draft length in tokens, 0 is MTP off",
        default="2, or 0 without an MTP head",
        label=mark("Draft length"),
        tip=mark("Tokens that the MTP head drafts per step. 0 turns MTP off. Flag: --spec-draft-n-max"),
        unit=mark("tokens, 0 turns MTP off"),
        most=LONGEST_DRAFT,
        usual=0,
        can_be_open=False,
        memory="formula",
    )
    ubatch: int | None = _setting_row(
        "ubatch",
        "tokens",
        "--ubatch-size",
        help="tokens of a prompt computed at once",
        default="512",
        label=mark("Batch (ubatch)"),
        tip=mark("Prompt tokens processed per batch. Flag: --ubatch-size"),
        unit=mark("tokens"),
        least=1,
        most=2**16,
        usual=512,
        memory="formula",
        steps=(64, 128, 256, 512, 1_024, 2_048, 4_096),
        tuned=(256, 512, 1_024),
        likely="long_answers",
    )
    slots: int | None = _setting_row(
        "slots",
        "count",
        "--parallel",
        help="requests served at once",
        default="1",
        label=mark("Slots"),
        tip=mark("Requests processed at the same time. They share the context. Flag: --parallel"),
        unit=mark("slots"),
        least=1,
        most=64,
        usual=1,
        always=True,  # without it llama-server makes four slots that share one KV cache
        can_be_open=False,
        memory="formula",
        steps=(1, 2, 3, 4, 6, 8, 12, 16),
    )
    n_cpu_moe: int | None = _setting_row(
        "n_cpu_moe",
        "count",
        "--n-cpu-moe",
        help="keep the experts of N layers in host memory",
        label=mark("Experts on CPU"),
        tip=mark("Layers whose experts run on the CPU. Flag: --n-cpu-moe"),
        unit=mark("layers"),
        most=1_024,
        usual=0,
        memory="formula",
        tuned=(),
        likely="offloaded",
        of_experts=True,
    )
    moe_cache_mib: int | None = _setting_row(
        "moe_cache_mib",
        "mib",
        "--moe-cache-mib",
        help="GPU memory that keeps copies of experts in host memory, 0 is none",
        metavar="MIB",
        default="0",
        label=mark("Expert cache"),
        tip=mark("GPU memory that caches experts of the CPU. Flag: --moe-cache-mib"),
        unit=mark("MiB"),
        most=2**20,
        usual=0,
        memory="gpu_mib",
        steps=(0, 512, 1_024, 2_048, 4_096, 8_192),
        tuned=(0, 1_024, 4_096),
        likely="offloaded",
        of_experts=True,
    )
    threads: int | None = _setting_row(
        "threads",
        "count",
        "--threads",
        help="processor threads",
        default="the engine's choice",
        unit=mark("threads, one per CPU core"),
        least=1,
        most=512,  # GGML_MAX_N_THREADS (ggml.h)
        tuned=(),
        likely="on_processor",
    )
    kv_unified: bool | None = _setting_row(
        "kv_unified",
        "switch",
        "--kv-unified --no-kv-unified",
        help="let all slots share one KV cache, so that one of them may fill it all",
        default="each has its part",
        usual=False,
        memory="formula",
    )
    cache_ram: int | None = _setting_row(
        "cache_ram",
        "mib",
        "--cache-ram",
        help="host memory for the prompts of earlier requests, 0 is none",
        metavar="MIB",
        default="8192, less where the host has less to spare",
        unit=mark("MiB"),
        most=2**20,
        usual=8_192,
        resolved=True,
    )
    ctx_checkpoints: int | None = _setting_row(
        "ctx_checkpoints",
        "count",
        "--ctx-checkpoints",
        help="states of the model kept for each slot in host memory, to go back to",
        default="32, fewer where the host has less to spare",
        unit=mark("checkpoints"),
        most=1_024,
        usual=32,
        resolved=True,
    )
    split_mode: str | None = _setting_row(
        "split_mode",
        "choice",
        "--split-mode",
        help="how several GPUs share a model: layer, tensor or none",
        metavar="MODE",
        default="layer",
        # "row" is missing: CUDA no longer has the buffers for it, so the load fails (src/llama-model.cpp, b11434).
        choices=("layer", "tensor", "none"),
        usual="layer",
        memory="formula",
        tuned=("layer", "tensor"),
        likely="several_gpus",
    )
    tensor_split: str | None = _setting_row(
        "tensor_split",
        "shares",
        "--tensor-split",
        help="the share of each GPU, such as 3,1",
        metavar="A,B",
        default="by their free memory",
        memory="formula",
    )
    draft_min: int | None = _setting_row(
        "draft_min",
        "count",
        "--spec-draft-n-min",
        help="drop drafts that are shorter than this, in tokens",
        default="0",
        most=LONGEST_DRAFT,
        usual=0,
        drafting=_FILES_AND_HEADS,
    )
    draft_kv: str | None = _setting_row(
        "draft_kv",
        "choice",
        "--spec-draft-type-k --spec-draft-type-v",
        help="type of the drafter's own KV cache",
        metavar="TYPE",
        default="f16",
        usual="f16",
        memory="formula",
        drafting=_FILES_AND_HEADS,
    )
    draft_ubatch: int | None = _setting_row(
        "draft_ubatch",
        "tokens",
        "--spec-draft-n-ubatch",
        help="tokens of a prompt that the drafter computes at once",
        default="as --ubatch",
        least=1,
        most=2**16,
        memory="formula",
        drafting=_FILES_AND_HEADS,
    )
    draft_gpu_layers: int | None = _setting_row(
        "draft_gpu_layers",
        "count",
        "--spec-draft-ngl",
        help="layers of a draft file on the GPU, 0 is none",
        default="all",
        most=1_024,
        memory="formula",
        drafting=("file",),
    )
    draft_device: str | None = _setting_row(
        "draft_device",
        "choice",
        "--spec-draft-device",
        help="the GPU for a draft file, such as CUDA1",
        metavar="NAME",
        default="those of the model",
        memory="formula",
        drafting=("file",),
    )
    draft_n_cpu_moe: int | None = _setting_row(
        "draft_n_cpu_moe",
        "count",
        "--spec-draft-n-cpu-moe",
        help="keep the experts of N layers of a draft file in host memory",
        default="0",
        most=1_024,
        usual=0,
        memory="formula",
        drafting=("file",),
    )
    p_min: float | None = _setting_row(
        "p_min",
        "share",
        "--spec-draft-p-min",
        help="stop a draft at a token that is less likely than this",
        metavar="P",
        default="0",
        most=1,
        tuned=(0.0, 0.5, 0.75),
        likely="offloaded",  # it saves verification, which is slow then; published runs on a GPU alone lost by it
        drafting=_FILES_AND_HEADS,
    )
    draft_sampling: str | None = _setting_row(
        "draft_sampling",
        "choice",
        "--spec-draft-sampling",
        help="how drafts are taken from what the drafter thinks likely: greedy or probabilistic",
        metavar="HOW",
        default="greedy",
        choices=("greedy", "probabilistic"),
        tuned=("greedy", "probabilistic"),
        likely="sampled",
        drafting=_FILES_AND_HEADS,
    )
    chosen_drafter: str | None = _setting_row(
        "drafter",
        "choice",
        "--spec-type",
        help=f"what drafts: {', '.join(SPEC_TYPES)}",
        metavar="KIND",
        default="the model's own",
        label=mark("Drafter"),
        tip=mark("What drafts tokens. Flag: --spec-type"),
        choices=SPEC_TYPES,
        memory="formula",
        tuned=tuple(row.spec_type for row in DRAFTERS.values() if row.tried),
        likely="several_drafters",
        drafting=("head", "file", "text"),
    )
    ngram: str | None = _setting_row(
        "ngram",
        "choice",
        "--spec-type",
        help="drafts from repeated text besides the model's own: ngram-simple, ngram-mod, ...",
        metavar="KIND",
        default="none",
        choices=("none", *(row.spec_type for row in DRAFTERS.values() if row.source == "text")),
        usual="none",
        tuned=("none", *(row.spec_type for row in DRAFTERS.values() if row.source == "text" and row.tried)),
        drafting=("head", "file", "text"),
    )
    spec_type: str = MTP.spec_type
    """The model's own drafter, as --spec-type calls it."""

    @property
    def draft_files(self) -> tuple[str, ...]:
        """Kinds of the files beside the model's with which it may draft."""
        return ()

    @property
    def drafter(self) -> Drafter:
        """The drafter in use."""
        return self.draft_choice.drafter

    @property
    def draft_choice(self) -> DraftChoice:
        """The drafter in use with the draft length."""
        return choose_drafts(self.drafter_if_on, self.draft)

    @property
    def drafter_if_on(self) -> Drafter:
        """The drafter that is used with a draft length above 0: the chosen one, else the model's own."""
        spec_type = self.chosen_drafter or self.spec_type
        return find_drafter(spec_type, self.draft_files)

    def can_draft(self, *, head: bool) -> bool:
        """Return whether that drafter has what it needs; `head`: the model's file has an MTP head."""
        return self.drafter_if_on.spec_type in usable_drafters(head=head, files=self.draft_files)

    def chosen(self) -> dict[str, Value]:
        """Return the settings that are not None, by name."""
        return {name: value for name, row in ROWS.items() if (value := row.value_in(self)) is not None}


ROWS: Mapping[str, ServerSetting] = {
    row.name: replace(row, attribute=each.name)
    for each in fields(ServerSettings)
    if (row := each.metadata.get("row")) is not None
}
"""All server settings by name, in the order in which they are listed."""
DRAFTING = ("draft", "drafter")
"""Settings that are one choice: how to draft."""
VARIED = tuple(name for name, row in ROWS.items() if row.tuned is not None)
"""Settings that a tune can vary besides the draft length."""


def name_setting(name: str, value: Value = None) -> FaceName:
    """Return the setting as each face calls it, with a value if one is given: --ctx, --kv q8_0; Context, MTP off."""
    row = ROWS[name]
    label = as_message(row.label or row.spelling)
    if value is None:
        return FaceName(row.option, label)
    is_off = name == "draft" and not value
    shown = message("{label} {value}", label=label, value=row.format_value(value))
    return FaceName(" ".join(row.cli_arguments(value)), as_message(MTP_OFF) if is_off else shown)


def to_fields(settings: Mapping[str, Value]) -> dict[str, Any]:
    """Convert settings by name to fields of `ServerSettings`, for its constructor and `dataclasses.replace`."""
    return {ROWS[name].attribute: value for name, value in settings.items()}


def format_settings(settings: Mapping[str, Value]) -> str:
    """Return settings by name as one line of text: "ctx 32768, kv-unified on"."""
    return ", ".join(f"{ROWS[name].spelling} {ROWS[name].format_value(value)}" for name, value in settings.items())


def check_settings(settings: ServerSettings) -> None:
    """Raise BadOption for a value that no engine accepts."""
    for row in ROWS.values():
        row.check_value(row.value_in(settings))


def find_setting_name(text: str, *, also: tuple[str, ...] = ()) -> str:
    """Return the name of the setting that a user wrote. `also` has further names that the caller accepts.

    Raises BadOption, with similar names, for an unknown one.
    """
    name = text.strip().lower().lstrip("-").replace("-", "_")
    name = "ctx" if name == "context" else name
    known = (*ROWS, *also)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    listed, meant = (tuple(each.replace("_", "-") for each in names) for names in (known, near))
    hint = suggest_names(meant) or message("There are {listed}.", listed=", ".join(listed))
    raise BadOption(message("{text} is not a server setting.", text=text), hint, setting=text)
