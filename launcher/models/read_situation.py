"""Reads the situation of this machine for plans: its free memory now, and that of RPC workers."""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.base.errors import BadOption
from launcher.base.messages import FaceName, fill_template, join_messages, mark, message
from launcher.machine.backend import BackendChoice, choose_backend
from launcher.machine.cards import Card, match_card
from launcher.machine.gpu import RESIZABLE_BAR_CURE, Gpu
from launcher.machine.host import LINUX_DRIVER, REMOVE_LINUX_DRIVER
from launcher.machine.machine import Machine
from launcher.machine.visibility import SLICE, find_hidden_gpus
from launcher.models.compute_buffers import Backend
from launcher.models.load_history import read_overhead_mib
from launcher.models.overhead import USUAL_MIB, expected_overhead_mib
from launcher.models.situation import (
    DESKTOP_MARGIN_MIB,
    HEADLESS_MARGIN_MIB,
    USABLE,
    ServerShare,
    Situation,
    available_mib,
    host_notes,
    processor_situation,
    usable_mib,
)

_MIB, _GIB = 2**20, 2**30
_ASLEEP = mark("The {name} is asleep and not used[; {option} wakes it].")
_MEMORY_UNKNOWN = mark("The {name} is not used because its memory is unknown: {why}")
_HIDDEN = mark("The {name} is not used: {variable}={value} hides it.")
_HIDDEN_BY_QUOTES = mark(
    "The {name} is not used: {variable}={value} hides it, because its value has quotation marks. Write it without them."
)
_TOO_OLD = mark("{reason} It is not used.")
_OTHER_MAKER = mark("The {name} is not used: a model can only be split over GPUs of one maker.")
_SHARED = mark("The {name} shares host memory: memory used on the GPU is no longer free on the host.")
_SILENT = mark(
    "The driver does not report the free memory of the {name}. The plan assumes {percent:.1f} % of its memory."
)
_MEASURED = mark(
    "Driver and process took up to {overhead_mib:,} MiB of the {name} in earlier loads; the plan counts that."
)
_ONE_SLICE = mark("The {name} is not used: CUDA takes one slice of a GPU at a time.")
_SMALL_BAR = mark("Resizable BAR is off for the {name}, which can make Vulkan several times slower.")
_BACKENDS_BY_DEVICE_NAME: Mapping[str, Backend] = {"CUDA": "cuda", "ROCm": "rocm", "MTL": "metal", "Vulkan": "vulkan"}
"""Prefixes of the engine's device names, with their backends."""
_COUNTED = mark(
    "Devices of the RPC workers {workers} in this plan, as listed by the engine: {devices}. The network "
    "limits their speed."
)
_UNCOUNTED = mark(
    "The RPC workers {workers} are not in this plan: the engine does not list their devices together with a local GPU."
)


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Memory in use by one of this user's running servers, in MiB.

    `by_gpu` is the driver's figure by GPU id, None if the driver has none. Then `estimate(backend, devices)` returns
    the share of each device by the memory estimate, or None for a model without one. `host_mib` is the engine's private
    memory on the host (without the memory-mapped model file), None if it cannot be read.
    """

    engine_pid: int
    model: str
    by_gpu: Mapping[str, int] | None
    host_mib: int | None
    estimate: Callable[[Backend, tuple[int, ...]], tuple[int, ...] | None]


def make_situation(
    machine: Machine,
    *,
    free_mib: int | None = None,
    headless: bool = False,
    host_gib: float | None = None,
    backend: Backend | None = None,
    environ: Mapping[str, str] | None = None,
    servers: Sequence[ServerMemory] = (),
) -> Situation:
    """Return the situation of this machine with its current memory; given arguments replace values that were read.

    `servers` are this user's running servers, whose memory counts as free: see Situation. Without a usable GPU the
    model runs on the processor, in host memory. The overhead of driver and process was measured in earlier loads on
    this GPU, else in published runs on such a card. `environ` (default: the environment of this process) may hide GPUs,
    as CUDA_VISIBLE_DEVICES does. Raises BadOption for the backend of a GPU if there is no GPU.
    """
    host, read_at = machine.host, time.time()
    host_mib = host.available_bytes // _MIB if host_gib is None else available_mib(host_gib)
    memory_gib, host_free_mib = host_gib or host.memory_bytes / _GIB, host_mib if free_mib is None else free_mib
    if backend == "cpu":
        notes = host_notes(host_gib) if free_mib is None else ()
        situation = processor_situation(memory_gib, host_free_mib, notes=notes)
        situation = replace(situation, threads=host.threads, read_at=read_at)
        return situation if host_gib or free_mib is not None else _add_own_host_memory(situation, servers)
    gpus, left_out = _choose_gpus(machine.gpus, backend, os.environ if environ is None else environ)
    notes = (*machine.failures, *left_out, *host_notes(host_gib))
    if host.linux_driver is not None:
        facts = {"file": host.linux_driver}
        hidden = join_messages(fill_template(LINUX_DRIVER, facts), fill_template(REMOVE_LINUX_DRIVER, facts))
        notes = (hidden, *notes)
    if not gpus and backend is not None:
        raise BadOption(
            message("--backend {backend} needs a GPU, and none can be used here.", backend=backend),
            message("Describe one: --gpu-memory."),
        )
    if not gpus:
        all_notes = tuple(filter(None, [machine.no_gpu_reason, *notes]))
        situation = processor_situation(memory_gib, host_free_mib, no_gpu=True, notes=all_notes)
        situation = replace(situation, threads=host.threads, read_at=read_at)
        return situation if host_gib or free_mib is not None else _add_own_host_memory(situation, servers)
    first = gpus[0]
    backend = backend or choose_gpu_backend(first)
    notes += tuple(
        fill_template(_ASLEEP, {"name": gpu.name, "option": FaceName("--wake")}) for gpu in machine.gpus if gpu.asleep
    )
    if free_mib is None:
        silent = [gpu.name for gpu in gpus if gpu.free_bytes is None]
        notes += tuple(fill_template(_SILENT, {"name": name, "percent": 100 * USABLE}) for name in silent)
    known_cards = [match_card(gpu.name, (gpu.memory_bytes or 0) / _GIB) for gpu in gpus]
    system = "windows" if host.wsl else host.kind  # in WSL the driver is that of Windows
    published = [
        expected_overhead_mib(backend, card, system=system, driver=gpu.driver)
        for gpu, card in zip(gpus, known_cards, strict=True)
    ]
    measured = [read_overhead_mib(gpu.id, backend) for gpu in gpus]
    overheads = tuple(usual if own is None else own for usual, own in zip(published, measured, strict=True))
    shares = tuple(server_share(server, gpus, backend, overheads) for server in servers) if free_mib is None else ()
    own_by_gpu = [sum(each.by_device[at] for each in shares if each.by_device) for at in range(len(gpus))]
    free_now = [
        max(0, _free_mib(gpu, host_mib) - (0 if gpu.free_bytes is not None else own))
        for gpu, own in zip(gpus, own_by_gpu, strict=True)
    ]
    if host_gib is None:
        own_host_mib = sum(each.host_mib for each in shares) + (sum(own_by_gpu) if first.unified else 0)
        host_mib = min(max(host_mib, host.memory_bytes // _MIB), host_mib + own_host_mib)
    by_gpu = [_free_mib(gpu, host_mib, own) for gpu, own in zip(gpus, own_by_gpu, strict=True)]
    if free_mib is None:
        free_mib = sum(by_gpu)
    elif sum(by_gpu):
        by_gpu = [free * free_mib // sum(by_gpu) for free in by_gpu]
    if first.unified:
        host_mib = max(0, host_mib - max(0, free_mib - first.carve_out_free_bytes // _MIB))
        notes += (fill_template(_SHARED, {"name": first.name}),)
    host_gb_s = host.memory_bandwidth_gb_s
    cards = tuple(_own_bandwidth(card, host_gb_s) for card in known_cards if card) if all(known_cards) else ()
    bandwidth = first.memory_bandwidth_gb_s or (cards[0].bandwidth_gb_s if cards else None)
    is_headless = headless or (host.kind == "linux" and host.wsl is None and host.display is None)
    margin_mib = (HEADLESS_MARGIN_MIB if is_headless else DESKTOP_MARGIN_MIB) * len(gpus)
    notes += tuple(
        fill_template(_MEASURED, {"name": gpu.name, "overhead_mib": own})
        for gpu, usual, own in zip(gpus, published, measured, strict=True)
        if own not in (None, usual)
    )
    cautions = tuple(
        join_messages(fill_template(_SMALL_BAR, {"name": gpu.name}), RESIZABLE_BAR_CURE)
        for gpu in gpus
        if gpu.small_bar and backend == "vulkan"
    )
    return Situation(
        backend=backend,
        nominal_gb=sum(gpu.memory_bytes or 0 for gpu in gpus) / _GIB,
        free_mib=free_mib,
        margin_mib=margin_mib,
        host_mib=host_mib,
        host_gb_s=host_gb_s,
        bandwidth_gb_s=bandwidth if len(gpus) == 1 else None,
        gpu_name=_join_names(gpus),
        cards=cards,
        gpus=len(gpus),
        unlike_gpus=len({gpu.name for gpu in gpus}) > 1,
        gpu_free_mib=tuple(by_gpu) if len(gpus) > 1 else (),
        overheads_mib=overheads,
        unified=bool(first.unified),
        carve_out_mib=first.carve_out_free_bytes // _MIB if first.unified else 0,
        headless=is_headless,
        threads=host.threads,
        notes=notes,
        cautions=cautions,
        own=shares,
        by_device_now_mib=tuple(free_now) if shares else (),
        read_at=read_at,
    )


def _own_bandwidth(card: Card, host_gb_s: float | None) -> Card:
    """Return a chip with unified memory as it is built into a computer whose memory modules state `host_gb_s`.

    Such chips come with modules of different rates. What is far from the maker's figure is not believed.
    """
    if host_gb_s is None or not card.unified or not 0.4 <= host_gb_s / card.bandwidth_gb_s <= 1.5:
        return card
    return replace(card, bandwidth_gb_s=round(host_gb_s))


def _add_own_host_memory(situation: Situation, servers: Sequence[ServerMemory]) -> Situation:
    """Return a situation on the processor in which the host memory of our own servers counts as free."""
    if not servers:
        return situation
    shares = tuple(
        ServerShare(
            each.engine_pid,
            each.model,
            None if each.host_mib is None else (each.host_mib,),
            each.host_mib or 0,
            measured=True,
        )
        for each in servers
    )
    most = max(situation.free_mib, round(situation.nominal_gb * 1_024))
    alone = min(most, situation.free_mib + sum(each.mib for each in shares))
    return replace(situation, free_mib=alone, host_mib=alone, own=shares, by_device_now_mib=(situation.free_mib,))


def _join_names(gpus: Sequence[Gpu]) -> str:
    """Return the name that all GPUs have, or the names of unlike ones as one text, such as "2 x A + B"."""
    counts = Counter(gpu.name for gpu in gpus)
    if len(counts) == 1:
        return gpus[0].name
    return " + ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())


def _free_mib(gpu: Gpu, host_mib: int, own_mib: int = 0) -> int:
    """Return the free memory of a GPU, in MiB, as if our own servers, which use `own_mib` of it, were stopped.

    A GPU that shares host memory has no more than is available there.
    """
    free = usable_mib((gpu.memory_bytes or 0) / _GIB)
    if gpu.free_bytes is not None:
        free = min(max(gpu.free_bytes, gpu.memory_bytes or 0) // _MIB, gpu.free_bytes // _MIB + own_mib)
    return min(free, gpu.carve_out_free_bytes // _MIB + host_mib) if gpu.unified else free


def _choose_gpus(
    gpus: Sequence[Gpu], backend: Backend | None, environ: Mapping[str, str]
) -> tuple[list[Gpu], tuple[str, ...]]:
    """Return the GPUs to split a model over, and a note for each GPU that is left out.

    These are all usable GPUs of one vendor with their own memory, or else one GPU that shares host memory.
    """
    hidden = explain_hidden_gpus(gpus, environ, backend)
    notes = list(hidden.values())
    usable = [gpu for gpu in gpus if gpu.memory_bytes and gpu.id not in hidden]
    own = sorted((gpu for gpu in usable if not gpu.unified), key=_too_old_for_cuda)
    chosen = own or usable[:1]
    if own:
        family = backend or choose_gpu_backend(own[0])
        same_vendor = [gpu for gpu in own if gpu.vendor == own[0].vendor]
        notes += [fill_template(_OTHER_MAKER, {"name": gpu.name}) for gpu in own if gpu not in same_vendor]
        fresh = [gpu for gpu in same_vendor if not _too_old_for_cuda(gpu)]
        if family == "cuda" and fresh:
            notes += [
                fill_template(_TOO_OLD, {"reason": choose_backend([gpu], "Linux").reason})
                for gpu in same_vendor
                if gpu not in fresh
            ]
            same_vendor = fresh
        slices = [gpu for gpu in same_vendor if gpu.id.startswith(SLICE)]
        chosen = [gpu for gpu in same_vendor if gpu not in slices] or slices[:1]
        notes += [fill_template(_ONE_SLICE, {"name": gpu.name}) for gpu in slices if gpu not in chosen]
    without_memory = [gpu for gpu in gpus if not gpu.memory_bytes and not gpu.asleep and not (gpu.unified and chosen)]
    return chosen, (
        *notes,
        *(
            fill_template(_MEMORY_UNKNOWN, {"name": gpu.name, "why": gpu.absent.get("memory_bytes", "")})
            for gpu in without_memory
        ),
    )


def explain_hidden_gpus(
    gpus: Sequence[Gpu], environ: Mapping[str, str], backend: Backend | None = None
) -> dict[str, str]:
    """Return the sentences on the GPUs that `environ` hides from `backend` (default: that of each GPU), by GPU ID."""
    notes: dict[str, str] = {}
    for gpu in gpus:
        variable = _hidden_by(gpu, gpus, backend or choose_gpu_backend(gpu), environ)
        if variable is not None:
            value = environ[variable]
            template = _HIDDEN_BY_QUOTES if value[:1] in {"'", '"'} else _HIDDEN
            notes[gpu.id] = fill_template(template, {"name": gpu.name, "variable": variable, "value": value})
    return notes


def choose_visible_backend(gpus: Sequence[Gpu], hidden: Mapping[str, str]) -> BackendChoice:
    """Return the build for the first GPU that is not `hidden`; if all are, the reason is what hides them."""
    choice = choose_backend([gpu for gpu in gpus if gpu.id not in hidden])
    return replace(choice, reason=join_messages(*hidden.values())) if choice.backend == "cpu" and hidden else choice


def _hidden_by(gpu: Gpu, gpus: Sequence[Gpu], backend: Backend, environ: Mapping[str, str]) -> str | None:
    """Return the environment variable that hides a GPU from a backend, or None.

    A GPU known only from an engine's device list is not hidden, since the engine sees it.
    """
    from_drivers = [each for each in gpus if _backend_by_device_name(each) is None]
    return find_hidden_gpus(from_drivers, backend, environ).get(gpu.id)


def _too_old_for_cuda(gpu: Gpu) -> bool:
    known = gpu.vendor == "nvidia" and gpu.compute_capability is not None and gpu.driver is not None
    return known and choose_backend([gpu], "Linux").backend == "vulkan"


def _backend_by_device_name(gpu: Gpu) -> Backend | None:
    return next((backend for name, backend in _BACKENDS_BY_DEVICE_NAME.items() if gpu.id.startswith(name)), None)


def choose_gpu_backend(gpu: Gpu) -> Backend:
    """Return the backend to use on a GPU.

    That is CUDA for NVIDIA GPUs that are not too old, and Vulkan for all others. For a GPU known only from an engine's
    device list, it is the backend of that list.
    """
    cuda = gpu.vendor == "nvidia" and not _too_old_for_cuda(gpu)
    return _backend_by_device_name(gpu) or ("cuda" if cuda else "vulkan")


def add_rpc_workers(situation: Situation, free_mib: Mapping[str, int], workers: Collection[str]) -> Situation:
    """Return a situation with the devices of RPC workers added: `free_mib` by name, as the engine lists them.

    If the engine lists none, only a note is added. The margin is kept free on each device.
    """
    names = ", ".join(workers)
    if not free_mib or situation.backend == "cpu":
        return replace(situation, notes=(*situation.notes, fill_template(_UNCOUNTED, {"workers": names})))
    own = situation.gpu_free_mib or (situation.free_mib,)
    count = situation.gpus + len(free_mib)
    devices = ", ".join(f"{name} with {free:,} MiB free" for name, free in free_mib.items())
    usual = (USUAL_MIB[situation.backend],)
    overheads = situation.overheads_mib or usual * situation.gpus
    return replace(
        situation,
        gpus=count,
        unlike_gpus=True,
        gpu_name=" + ".join([situation.gpu_name or "GPU", *free_mib]),
        gpu_free_mib=(*own, *free_mib.values()),
        overheads_mib=(*overheads, *usual * len(free_mib)),
        free_mib=situation.free_mib + sum(free_mib.values()),
        own=tuple(each.with_workers(len(free_mib)) for each in situation.own),
        by_device_now_mib=(*situation.by_device_now_mib, *free_mib.values()) if situation.own else (),
        margin_mib=situation.margin_mib * count // situation.gpus,
        bandwidth_gb_s=None,
        cards=(),
        notes=(*situation.notes, fill_template(_COUNTED, {"workers": names, "devices": devices})),
    )


def server_share(
    server: ServerMemory, gpus: Sequence[Gpu], backend: Backend, overheads_mib: tuple[int, ...]
) -> ServerShare:
    """Return the memory of a server on each GPU: measured, else estimated, but no more than is in use there."""
    if server.by_gpu is not None:
        shares: tuple[int, ...] | None = tuple(server.by_gpu.get(gpu.id, 0) for gpu in gpus)
    else:
        expected = server.estimate(backend, overheads_mib)
        shares = expected and tuple(
            share if gpu.used_bytes is None else min(share, gpu.used_bytes // _MIB)
            for share, gpu in zip(expected, gpus, strict=True)
        )
    return ServerShare(
        server.engine_pid, server.model, shares, server.host_mib or 0, measured=server.by_gpu is not None
    )
