"""Modules that take long to import and are not needed at once, as `LateModule`.

`from launcher.base.late import asyncio` is for modules that the window's first paint needs: importing asyncio takes a
tenth of the time until then.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


class LateModule:
    """Has the names of a module, which is imported when the first of them is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the module has
        """Return the module's attribute `name`."""
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import asyncio as asyncio

    import psutil as psutil
else:
    asyncio, psutil = LateModule("asyncio"), LateModule("psutil")
