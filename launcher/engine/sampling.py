"""What a server samples with when a request says nothing, as its /props tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.base.errors import LauncherError
from launcher.engine.client import EngineClient

NAMES = ("temperature", "top_k", "top_p", "min_p", "max_tokens")
_DIGITS = 4
"""The engine's values are single precision: 0.8 comes as 0.800000011920929."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The server's own values by the names of a request; those it does not tell are left out.

    `thinks` is whether its chat template has a switch for thinking, None while that is unknown.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    thinks: bool | None = None


async def sampling_defaults(client: EngineClient) -> SamplingDefaults:
    """Ask a server. What it does not answer is unknown."""
    try:
        told = await client.answer("/props")
    except LauncherError:
        return SamplingDefaults()
    if not isinstance(told, dict):
        return SamplingDefaults()
    settings = told.get("default_generation_settings")
    given = settings.get("params") if isinstance(settings, dict) else None
    found = {
        name: round(value, _DIGITS)
        for name in NAMES
        if isinstance(given, dict) and isinstance(value := given.get(name), int | float) and not isinstance(value, bool)
    }
    template = told.get("chat_template")
    return SamplingDefaults(found, "enable_thinking" in template if isinstance(template, str) else None)
