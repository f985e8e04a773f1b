"""Interface by which the gateway finds the gate of the model that a request names."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from launcher.gateway.gate import Gate

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Route:
    """The gate that a request goes through.

    `model` is the name of the model that answers, None if there is only one. `ready` is set while that model
    is loading or its settings are being changed: it is done once the model takes requests, or raises Refusal if the
    model cannot. `system_text` is put before conversations without a system message.
    """

    gate: Gate
    model: str | None = None
    ready: "asyncio.Future[None] | None" = None
    system_text: str = ""


class ModelRouter(Protocol):
    """Finds the gate for a request."""

    @property
    def gates(self) -> Collection[Gate]:
        """The gates of all models."""

    async def find_route(self, name: str | None, body: Body | None, /) -> Route:
        """Return the route of a request that names the model `name`, or none. Raises Refusal."""

    def find_loaded_gate(self, name: str, /) -> Gate | None:
        """Return the gate of the model `name` if it is loaded."""

    async def list_models(self) -> Sequence[Body] | None:
        """Return the models that can be asked for, for /v1/models; None to have the engine answer."""

    async def is_healthy(self) -> bool:
        """Return whether requests that name no model will be answered."""


class OneModelRouter:
    """Sends all requests through one gate, whatever model they name."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def gates(self) -> Collection[Gate]:
        """See ModelRouter."""
        return (self._gate,)

    async def find_route(self, _name: str | None, _body: Body | None, /) -> Route:
        """See ModelRouter."""
        return Route(self._gate)

    def find_loaded_gate(self, _name: str, /) -> Gate | None:
        """See ModelRouter."""
        return self._gate

    async def list_models(self) -> Sequence[Body] | None:
        """See ModelRouter."""
        return None

    async def is_healthy(self) -> bool:
        """See ModelRouter."""
        return await self._gate.is_healthy()
