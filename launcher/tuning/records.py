"""What a measurement is made of: prompts, measured replies, and the bench that they are measured on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from launcher.monitor.meter import Acceptance

Value = int | float | str | None
Settings = Mapping[str, Value]
"""Settings of a server by their names in launcher.engine.settings: ctx, draft, kv, ubatch, n_cpu_moe, threads ..."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a workload: its messages, and how it is to be answered.

    `messages` are pairs of role and text, `tokens` the most that the reply may have, `sampling` further fields of the
    request (temperature, top_k, ...). `name` tells it apart within its workload. `size` is how many tokens the model
    is to read, as its engine counts them with the chat template: `fill.sized` makes it so. None leaves it as it is.
    """

    name: str
    messages: tuple[tuple[str, str], ...]
    tokens: int
    sampling: Mapping[str, Value] = field(default_factory=dict)
    thinking: bool | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One measured reply. Rates are tokens a second by the engine's clock; unknown is None.

    With `clock` "wall" they are by the reader's, for a server that gives no timings: `prefill_rate` then counts the way
    there and the first token's own time, too.

    `first_token_s` and `wall_s` are as the reader saw them; `energy_j` is power over its time. `spoilt` says why
    a run must not be counted (throttling, a spill, another program on the GPU), `error` why there was no reply.
    """

    prompt: str
    settings: Settings
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
    def counts(self) -> bool:
        """Whether the run may be used."""
        return self.spoilt is None and self.error is None and self.decode_rate is not None

    @property
    def steps(self) -> int | None:
        """Passes of the model that wrote: tokens less accepted drafts; None where it cannot be known.

        The one that wrote the first token is among them, as that is in the engine's rate: tokens a step over the time
        of a step so is the rate that the engine tells.
        """
        if not self.reply_tokens:
            return None
        return max(self.reply_tokens - (self.acceptance.accepted if self.acceptance else 0), 1)


class Bench(Protocol):
    """One server that can be given settings and asked, with a clock of its own: the real one, or a simulated one."""

    def now_s(self) -> float:
        """Return the bench's time in seconds; only differences mean something."""
        ...

    async def become(self, settings: Settings) -> float:
        """Serve with `settings` and return the seconds it took, 0 when they are in use already.

        Raises LauncherError when it cannot be served so (out of memory, refused): then nothing is served.
        """
        ...

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """Ask once with the settings in use; what goes wrong is told in the run."""
        ...
