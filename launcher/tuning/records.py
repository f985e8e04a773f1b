"""Records of measuring: prompts, runs, and the bench on which they are measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from launcher.models.server_settings import Value
from launcher.monitor.meter import Acceptance

RunSettings = Mapping[str, Value]
"""All server settings of a run by their names in models.server_settings (ctx, draft, kv ...), and `extra` arguments."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a workload.

    `name` is unique within the workload. `messages` are pairs of role and text, `tokens` is the maximum length of the
    reply, `sampling` has further fields of the request (temperature, top_k, ...). `size` is the number of prompt
    tokens, including the chat template, up to which `sized_prompts.fill_prompts` adds text; None adds none.
    """

    name: str
    messages: tuple[tuple[str, str], ...]
    tokens: int
    sampling: Mapping[str, Value] = field(default_factory=dict)
    thinking: bool | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One timed reply. Rates are tokens per second by the engine's clock. Unknown values are None.

    With `clock` "wall", for a server without timings, rates are by the client's clock: `prefill_rate` then includes the
    network and the first token. `first_token_s` and `wall_s` are always by the client's clock. `energy_j` is mean power
    times time. `spoilt` names the disturbance (throttling, a spill, another program on the GPU) that makes the run
    unusable, `error` the reason why there was no reply.
    """

    prompt: str
    settings: RunSettings
    began_s: float
    wall_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reply_tokens: int = 0
    prefill_rate: float | None = None
    decode_rate: float | None = None
    first_token_s: float | None = None
    acceptance: Acceptance | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    spoilt: str | None = None
    error: str | None = None
    clock: Literal["engine", "wall"] = "engine"

    @property
    def is_counted(self) -> bool:
        """Whether the run is usable."""
        return self.spoilt is None and self.error is None and self.decode_rate is not None

    @property
    def steps(self) -> int | None:
        """Verification steps of the model: tokens less accepted drafts. None if unknown.

        The first token's pass counts as a step, as in the engine's rate, so that tokens per step divided by the time of
        a step is the engine's rate.
        """
        if not self.reply_tokens:
            return None
        return max(self.reply_tokens - (self.acceptance.accepted if self.acceptance else 0), 1)


class Bench(Protocol):
    """A real or simulated server to measure on, which takes settings and requests, and its clock."""

    def now_s(self) -> float:
        """Return the bench's time in seconds. Only differences are meaningful."""
        ...

    async def become(self, settings: RunSettings, *, fresh: bool = False) -> float:
        """Start the server with `settings` and return the seconds that the start took.

        If the settings are already in use, nothing is started and 0 is returned, unless a `fresh` start is wanted.

        Raises LauncherError if the server cannot start with them (out of memory, refused); no server runs then.
        """
        ...

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """Send one request and return its run. Errors are reported in the run."""
        ...
