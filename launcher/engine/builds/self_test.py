"""Self-test of an engine: checks its version, its GPU, and that it accepts drafts on the demo model."""

import asyncio
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import DraftsInert, GpuUnseen, LauncherError, LibraryMissing
from launcher.base.messages import message
from launcher.base.paths import expand_user, state_dir
from launcher.base.units import format_percent
from launcher.engine.builds.assets import gpu_for
from launcher.engine.builds.build import Device, EngineBuild, find_llama_server_on_path
from launcher.engine.builds.install_errors import SelfTestFailed
from launcher.engine.builds.installed import AUTOMATIC, BUILT_IN_NAME, read_store
from launcher.engine.builds.known_bad import build_number
from launcher.engine.builds.probe import list_devices, probe_engine
from launcher.engine.builds.slot_files import SAVE_FLAG, SlotFiles, probe_slot_files, save_slot_files
from launcher.engine.demo import read_demo_preset, unpack_demo_model
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, Timings
from launcher.engine.server.endpoint import HOST, Endpoint
from launcher.engine.server.logs import LogBook
from launcher.engine.server.supervisor import Supervisor
from launcher.machine.engine_devices import find_disagreements, is_gpu
from launcher.machine.gpu import Gpu
from launcher.machine.libraries import install_command, known_libraries, missing_libraries
from launcher.machine.machine import read_machine
from launcher.machine.visibility import find_hidden_gpus

_DEVICE_PREFIXES = {
    "cuda": ("CUDA",),
    "rocm": ("ROCm", "HIP"),
    "vulkan": ("Vulkan",),
    "sycl": ("SYCL",),
    "metal": ("MTL", "Metal"),
}
"""Device name prefixes in --list-devices by backend; for backends not listed here any name is accepted."""
_DLL_MISSING = 0xC0000135
"""STATUS_DLL_NOT_FOUND, as a process's exit code (ntstatus.h)."""
_SONAME = re.compile(r"[\w.+-]+\.so(?:\.\d+)*")
_SELF_TEST_PROMPT = message("What is MTP, and what does this demo show?")
_SELF_TEST_TOKENS = 96

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The result of a successful self-test.

    `drafted` and `accepted` count draft tokens on the demo model, `seconds` is the duration of the test, and `notes`
    are remarks for the user that are not failures. `slot_files` is what the engine's slot files hold.
    """

    build: EngineBuild
    devices: tuple[Device, ...]
    drafted: int
    accepted: int
    tokens_per_second: float | None
    seconds: float
    notes: tuple[str, ...]
    slot_files: SlotFiles

    @property
    def acceptance_text(self) -> str:
        """Draft acceptance as text for a reader."""
        share = format_percent(self.accepted / self.drafted)
        return f"{self.accepted} of {self.drafted} drafted tokens accepted ({share})"


async def run_self_test(
    program: Path | None,
    *,
    number: int | None = None,
    backend: str | None = None,
    gpu: Gpu | None = None,
    on_step: OnStep = lambda _: None,
) -> SelfTestResult:
    """Run an engine on the demo model and check the results; `program` None tests the built-in engine.

    `number` is the expected build number, `backend` the backend that must list a GPU, `gpu` the GPU that must be in the
    list; checks whose argument is None are skipped. The process is always stopped. Raises SelfTestFailed, GpuUnseen,
    LibraryMissing with the command that installs the library, DraftsInert, or the errors of `probe_engine` and
    `Supervisor.become`.
    """
    began_s = time.monotonic()
    try:
        on_step(message("Reading its version and flags"))
        build = await probe_engine(program)
        if number is not None and build_number(build.version) != number:
            raise SelfTestFailed(
                message(
                    "The archive of b{number} contains another build: {version}.",
                    number=number,
                    version=build.version,
                ),
                message("Try another release."),
            )
        on_step(message("Reading its GPUs"))
        devices = await list_devices(build)
        notes = _check_gpu(devices, backend, gpu)
        on_step(message("Running the demo model with MTP"))
        timings, slot_files = await _serve_demo(program, build)
    except LauncherError as error:
        raise _with_install_line(error) from error
    return SelfTestResult(
        build,
        devices,
        timings.draft_n or 0,
        timings.draft_n_accepted or 0,
        timings.tokens_per_second,
        time.monotonic() - began_s,
        notes,
        slot_files,
    )


async def check_engine(name: str | None = None, *, on_step: OnStep = lambda _: None) -> tuple[str, SelfTestResult]:
    """Test an engine by store name, path or "built-in", by default the one in use; return its name and the result.

    An official GPU build must list this computer's GPU. Raises EngineMissing and the errors of `run_self_test`.
    """
    store = read_store()
    name = name or store.current
    if name == AUTOMATIC:
        name = str(find_llama_server_on_path() or BUILT_IN_NAME)
    if name == BUILT_IN_NAME:
        return name, await run_self_test(None, on_step=on_step)
    if os.sep in name or "/" in name:  # Windows accepts "/" in paths, too
        return name, await run_self_test(expand_user(name), on_step=on_step)
    engine = store.find_engine(name)
    if engine.manifest is None:
        return engine.name, await run_self_test(engine.program, on_step=on_step)
    backend = engine.manifest.backend.partition("-")[0]
    gpus = (await asyncio.to_thread(lambda: read_machine(wake=True))).gpus if backend != "cpu" else ()
    gpu = gpu_for(backend, gpus)
    result = await run_self_test(engine.program, number=engine.number, backend=backend, gpu=gpu, on_step=on_step)
    return engine.name, result


def _check_gpu(devices: Sequence[Device], backend: str | None, gpu: Gpu | None) -> tuple[str, ...]:
    """Check that `backend` lists a GPU and, if given, `gpu`; return notes for the user. Raises GpuUnseen otherwise."""
    if backend is None or backend == "cpu":
        return ()
    prefixes = _DEVICE_PREFIXES.get(backend, "")
    of_backend = [device for device in devices if is_gpu(device) and device.name.startswith(prefixes)]
    disagreements = find_disagreements([gpu], of_backend) if gpu is not None else ()
    if of_backend and not any(each.kind in ("missing", "hidden") for each in disagreements):
        return ()
    variable = find_hidden_gpus([gpu], backend, os.environ).get(gpu.id) if gpu is not None else None
    if gpu is not None and variable is not None:
        hidden = message(
            "{variable}={environ} hides the {name} from the engine.",
            variable=variable,
            environ=os.environ[variable],
            name=gpu.name,
        )
        if of_backend:
            return (message("{hidden} Another one was tested.", hidden=hidden),)
        raise GpuUnseen(hidden, message("Unset {variable}, or name this GPU in it.", variable=variable), hidden=True)
    if backend == "vulkan" and any(library.soname.startswith("libvulkan") for library in missing_libraries("official")):
        raise GpuUnseen(
            message("The engine does not see the GPU: the Vulkan loader (libvulkan.so.1) is not installed."),
            message("Install it: {install_line}", install_line=install_command(missing_libraries("official"))),
        )
    listed = ", ".join(f"{device.name} ({device.description})" for device in devices) or "none"
    raise GpuUnseen(
        message(
            "The engine does not see the GPU{name} and would run on the CPU.",
            name=(f" ({gpu.name})" if gpu else ""),
        ),
        message(
            "Its {backend} library, or the runtime or driver for it, did not load. Devices found: {listed}.",
            backend=backend,
            listed=listed,
        ),
        devices=[device.name for device in devices],
        hidden=False,
    )


async def _serve_demo(program: Path | None, build: EngineBuild) -> tuple[Timings, SlotFiles]:
    """Serve the demo model on loopback, request one reply with MTP, and stop the server.

    Return the timings, and what the engine's slot files hold, which is kept with the build.

    Raises SelfTestFailed if the process is still running afterwards, DraftsInert if no draft was accepted.
    """
    preset = read_demo_preset()
    endpoint = Endpoint(_free_port(), secrets.token_urlsafe(32))
    log = LogBook(state_dir() / "logs" / "engine-test.log")
    supervisor = Supervisor(endpoint, log)
    slot_folder = state_dir() / "engine-test-slots"
    saves = SAVE_FLAG in build.flags
    options = ServeOptions(
        model=unpack_demo_model(),
        engine=program,
        built_in=program is None,
        context=preset.context,
        threads=preset.threads,
        draft=preset.draft,
        alias="self-test",
        extra=(SAVE_FLAG, str(slot_folder)) if saves else (),
    )
    request = ChatRequest(
        [{"role": "user", "content": _SELF_TEST_PROMPT}],
        max_tokens=_SELF_TEST_TOKENS,
        temperature=preset.temperature,
        seed=1,
        thinking=False,
    )
    timings: Timings | None = None
    process = None
    slot_files = SlotFiles.NONE
    try:
        slot_folder.mkdir(parents=True, exist_ok=True)
        await supervisor.become(options)
        process = supervisor.process
        async with supervisor.chat(request) as deltas:
            async for delta in deltas:
                timings = delta.timings or timings
        if saves:
            slot_files = await probe_slot_files(supervisor.client, request.body())
            save_slot_files(build, slot_files)
    finally:
        await supervisor.become(None)
        log.close()
        await asyncio.to_thread(shutil.rmtree, slot_folder, ignore_errors=True)
    if process is not None and process.identity.is_running():
        raise SelfTestFailed(
            message("The engine process {pid} is still running.", pid=process.identity.pid),
            message("End that process yourself."),
        )
    if timings is None or not timings.draft_n_accepted:
        drafted = timings.draft_n or 0 if timings else 0
        raise DraftsInert(
            message(
                "The engine runs, but none of its {drafted} drafted tokens on the demo model were accepted.",
                drafted=drafted,
            ),
            message("MTP is broken in this build. Use another one."),
            drafted=drafted,
        )
    return timings, slot_files


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _with_install_line(error: LauncherError) -> LauncherError:
    """Return `error` with the command that installs the missing system library, if its package is known."""
    if error.facts.get("exit_code") == _DLL_MISSING:
        return LibraryMissing(
            message("The engine needs a DLL that is missing."),
            message(
                "Install the Microsoft Visual C++ Redistributable for x64 (winget install"
                " Microsoft.VCRedist.2015+.x64)."
            ),
            **error.facts,
        )
    if not isinstance(error, LibraryMissing) or sys.platform != "linux":
        return error
    for soname in _SONAME.findall(error.title):
        known = tuple(library for library in known_libraries() if library.soname == soname)
        if known:
            return LibraryMissing(
                error.title,
                message("Install it: {install_line}", install_line=install_command(known[:1])),
                **error.facts,
            )
    return error
