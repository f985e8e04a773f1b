"""Proof that an engine is what it was taken for: its version, its GPU, and accepted drafts on the demo model."""

import asyncio
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import DraftsInert, GpuUnseen, LauncherError, LibraryMissing
from launcher.base.paths import expanded, state_dir
from launcher.base.units import percent
from launcher.base.words import part
from launcher.engine.assets import gpu_for
from launcher.engine.build import Build, Device, find_on_path, list_devices, probe
from launcher.engine.client import ChatRequest, Timings
from launcher.engine.demo import demo_preset, unpack_demo_model
from launcher.engine.endpoint import HOST, Endpoint
from launcher.engine.install_errors import SelfTestFailed
from launcher.engine.installed import AUTOMATIC, BUILT_IN_NAME, read_store
from launcher.engine.known_bad import build_number
from launcher.engine.launch import ServeOptions
from launcher.engine.logs import LogBook
from launcher.engine.supervisor import Supervisor
from launcher.machine.engine_view import disagreements, is_gpu
from launcher.machine.gpu import Gpu
from launcher.machine.libraries import install_line, known_libraries, missing_libraries
from launcher.machine.machine import read_machine
from launcher.machine.visibility import hidden_by

_DEVICES = {
    "cuda": ("CUDA",),
    "rocm": ("ROCm", "HIP"),
    "vulkan": ("Vulkan",),
    "sycl": ("SYCL",),
    "metal": ("MTL", "Metal"),
}
"""How the devices of a backend are called in --list-devices; the other backends have names of their own."""
_DLL_MISSING = (0xC0000135, 0xC0000135 - 2**32)
"""STATUS_DLL_NOT_FOUND, as a process's exit code (ntstatus.h)."""
_SONAME = re.compile(r"[\w.+-]+\.so(?:\.\d+)*")
_PROMPT = "What is MTP, and what does this demo show?"
_TOKENS = 96

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Passed:
    """What a self-test saw. `notes` are things to know that are no failure."""

    build: Build
    devices: tuple[Device, ...]
    drafted: int
    accepted: int
    tokens_per_second: float | None
    seconds: float
    notes: tuple[str, ...]

    @property
    def drafts(self) -> str:
        """The drafts as people read them."""
        return f"{self.accepted} of {self.drafted} drafted tokens accepted ({percent(self.accepted / self.drafted)})"


async def self_test(
    program: Path | None,
    *,
    number: int | None = None,
    backend: str | None = None,
    gpu: Gpu | None = None,
    on_step: OnStep = lambda _: None,
) -> Passed:
    """Run an engine and see that it works; None is the built-in one. No process is left.

    `number` is the build that it must be, `backend` the one whose GPU it must list, `gpu` which one that is; what is
    None is not asked for. Raises SelfTestFailed or GpuUnseen, LibraryMissing with the line that installs it,
    DraftsInert, or what `probe` and `Supervisor.become` raise.
    """
    began_s = time.monotonic()
    try:
        on_step(part("Asking for its version and flags"))
        build = await probe(program)
        if number is not None and build_number(build.version) != number:
            raise SelfTestFailed(
                f"The archive of b{number} holds another build: it says {build.version}.", "Try another release."
            )
        on_step(part("Asking for its GPUs"))
        devices = await list_devices(build)
        notes = _check_gpu(devices, backend, gpu)
        on_step(part("Running the demo model with MTP"))
        timings = await _serve_demo(program)
    except LauncherError as error:
        raise _with_install_line(error) from error
    return Passed(
        build,
        devices,
        timings.draft_n or 0,
        timings.draft_n_accepted or 0,
        timings.tokens_per_second,
        time.monotonic() - began_s,
        notes,
    )


async def check_engine(name: str | None = None, *, on_step: OnStep = lambda _: None) -> tuple[str, Passed]:
    """Test an engine of the store, one at a path, "built-in", or by default what is in use; return its name, too.

    An official build for a GPU must list this computer's. Raises EngineMissing and what `self_test` raises.
    """
    store = read_store()
    wanted = name or store.current
    if wanted == AUTOMATIC:
        wanted = str(find_on_path() or BUILT_IN_NAME)
    if wanted == BUILT_IN_NAME:
        return wanted, await self_test(None, on_step=on_step)
    if os.sep in wanted or "/" in wanted:  # which Windows takes, too
        return wanted, await self_test(expanded(wanted), on_step=on_step)
    engine = store.find(wanted)
    if engine.manifest is None:
        return engine.name, await self_test(engine.program, on_step=on_step)
    backend = engine.manifest.backend.partition("-")[0]
    gpus = (await asyncio.to_thread(lambda: read_machine(wake=True))).gpus if backend != "cpu" else ()
    gpu = gpu_for(backend, gpus)
    passed = await self_test(engine.program, number=engine.number, backend=backend, gpu=gpu, on_step=on_step)
    return engine.name, passed


def _check_gpu(devices: Sequence[Device], backend: str | None, gpu: Gpu | None) -> tuple[str, ...]:
    """Raise GpuUnseen unless the backend lists a GPU, and the one that is expected; return what else is to be known."""
    if backend is None or backend == "cpu":
        return ()
    own = [device for device in devices if is_gpu(device) and device.name.startswith(_DEVICES.get(backend, ""))]
    missed = gpu is not None and any(each.kind in ("missing", "hidden") for each in disagreements([gpu], own))
    if own and not missed:
        return ()
    variable = hidden_by([gpu], backend, os.environ).get(gpu.id) if gpu is not None else None
    if gpu is not None and variable is not None:
        hidden = f"{variable}={os.environ[variable]} hides the {gpu.name} from the engine."
        if own:
            return (f"{hidden} Another one was tested.",)
        raise GpuUnseen(hidden, f"Unset {variable}, or name this GPU in it.", hidden=True)
    if backend == "vulkan" and any(library.soname.startswith("libvulkan") for library in missing_libraries("official")):
        raise GpuUnseen(
            "The engine does not see the GPU: the Vulkan loader (libvulkan.so.1) is not installed.",
            f"Install it: {install_line(missing_libraries('official'))}",
        )
    listed = ", ".join(f"{device.name} ({device.description})" for device in devices) or "none"
    raise GpuUnseen(
        f"The engine does not see the GPU{f' ({gpu.name})' if gpu else ''}: it would run on the processor.",
        f"Its {backend} library or the runtime or driver that this needs did not load. It lists: {listed}.",
        devices=[device.name for device in devices],
        hidden=False,
    )


async def _serve_demo(program: Path | None) -> Timings:
    """Serve the demo model on loopback, let it answer with MTP, and end it; drafts must have been accepted."""
    preset = demo_preset()
    endpoint = Endpoint(_free_port(), secrets.token_urlsafe(32))
    log = LogBook(state_dir() / "logs" / "engine-test.log")
    supervisor = Supervisor(endpoint, log)
    options = ServeOptions(
        model=unpack_demo_model(),
        engine=program,
        built_in=program is None,
        context=preset.context,
        threads=preset.threads,
        draft=preset.draft,
        alias="self-test",
    )
    request = ChatRequest(
        [{"role": "user", "content": _PROMPT}],
        max_tokens=_TOKENS,
        temperature=preset.temperature,
        seed=1,
        thinking=False,
    )
    timings: Timings | None = None
    process = None
    try:
        await supervisor.become(options)
        process = supervisor.process
        async with supervisor.chat(request) as deltas:
            async for delta in deltas:
                timings = delta.timings or timings
    finally:
        await supervisor.become(None)
        log.close()
    if process is not None and process.identity.running():
        raise SelfTestFailed(f"The engine's process {process.identity.pid} did not end.", "End it by hand.")
    if timings is None or not timings.draft_n_accepted:
        drafted = timings.draft_n or 0 if timings else 0
        raise DraftsInert(
            f"The engine runs, but of the {drafted} tokens that it drafted on the demo model none was accepted.",
            "This build does not do MTP as it should: use another one.",
            drafted=drafted,
        )
    return timings


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _with_install_line(error: LauncherError) -> LauncherError:
    """Name the package of a system library that the loader missed, where it is known."""
    if error.facts.get("exit_code") in _DLL_MISSING:
        return LibraryMissing(
            "The engine needs a DLL that is not there.",
            "Install the Microsoft Visual C++ Redistributable for x64 (winget install Microsoft.VCRedist.2015+.x64).",
            **error.facts,
        )
    if not isinstance(error, LibraryMissing) or sys.platform != "linux":
        return error
    for soname in _SONAME.findall(error.title):
        known = tuple(library for library in known_libraries() if library.soname == soname)
        if known:
            return LibraryMissing(error.title, f"Install it: {install_line(known[:1])}", **error.facts)
    return error
