"""Suggested fixes as data. Errors and findings carry them; the command line and the window offer them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Value = str | int


class ActionKind(StrEnum):
    """The kinds of fix. Some change server settings; the others are carried out by the program or by the user."""

    SMALLER_CONTEXT = "smaller_context"
    LARGER_CONTEXT = "larger_context"
    OTHER_KV_TYPE = "other_kv_type"
    SMALLER_UBATCH = "smaller_ubatch"
    DRAFT_OFF = "draft_off"
    MORE_EXPERTS_ON_CPU = "more_experts_on_cpu"
    ONE_SLOT = "one_slot"
    MORE_SLOTS = "more_slots"
    LARGER_CACHE = "larger_cache"
    SHORTER_DRAFT = "shorter_draft"
    OTHER_DRAFTS = "other_drafts"
    IMPROVE_COOLING = "improve_cooling"
    PLUG_IN = "plug_in"
    REMOVE_FLAG = "remove_flag"
    REPLACE_FLAG = "replace_flag"
    ADD_FLAG = "add_flag"
    BUILT_IN_ENGINE = "built_in_engine"
    LOAD_PROJECTOR = "load_projector"
    OTHER_ENGINE_BUILD = "other_engine_build"
    OTHER_PORT = "other_port"
    OTHER_MODEL = "other_model"
    DOWNLOAD_AGAIN = "download_again"
    UPDATE_DRIVER = "update_driver"
    INSTALL_LIBRARY = "install_library"
    FREE_MEMORY = "free_memory"
    FREE_PROCESSOR = "free_processor"
    UNSET_VARIABLE = "unset_variable"
    CHECK_NETWORK = "check_network"
    SHORTER_PROMPT = "shorter_prompt"
    RESTART = "restart"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Action:
    """A suggested fix: its kind, the label of its button and the values it needs.

    In `parameters`, `context` and `ubatch` are in tokens, `cache_ram` is in MiB, `n_cpu_moe` is a number of layers, and
    `link` is a URL to open.
    """

    kind: ActionKind
    label: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
