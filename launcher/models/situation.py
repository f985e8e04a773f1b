"""The situation that plans are made for: the memory of this machine, or of one described by options."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.base.codec import JsonView
from launcher.base.errors import BadOption
from launcher.base.messages import fill_template, mark, message, plural_message
from launcher.machine.cards import Card, typical_card
from launcher.models.compute_buffers import Backend
from launcher.models.drafters import STABLE_SPEC_TYPES
from launcher.models.overhead import expected_overhead_mib

HEADLESS_MARGIN_MIB, DESKTOP_MARGIN_MIB = 512, 1_024
"""Margin in MiB left free besides the memory estimate: on Linux without a display, and elsewhere."""
MEMORY_VIEW = JsonView("alone_mib=free_mib beside_mib=free_now_mib own_mib read_at:1")
"""The free memory with and without our own servers, and the time of reading, in JSON of the command line."""
USABLE = 0.967
"""Usable share of a card's nominal memory: 15,840 MiB of an RTX 5060 Ti 16 GB; 0.98 on other cards."""
_HOST_COUNTED = mark(
    "The plan uses up to {counted:,} MiB of {host_gib:g} GiB host memory and leaves the rest to the system."
)
_HOST_RESERVE, _MOST_RESERVE_MIB = 0.25, 8_192
"""Share of host memory left to the system and other programs if the free memory is unknown, and the most that is left.

Idle machines with 122 to 126 GiB have 118 to 120 GiB free (DGX Spark, Ryzen AI Max+ 395: issue P).
"""
_OWN_UNKNOWN = mark("The memory of {name} is unknown. Stopping it frees more memory than this figure shows.")


@dataclass(frozen=True, slots=True)
class ServerShare:
    """The memory, in MiB, that one of our running servers uses of a situation's memory.

    `by_device` has one entry per GPU, or a single one for host memory; None if unknown. `measured`: the figures are
    from the driver or the system, not from the memory estimate.
    """

    engine_pid: int
    model: str
    by_device: tuple[int, ...] | None
    host_mib: int
    measured: bool

    @property
    def mib(self) -> int:
        """Sum over all devices, in MiB; 0 if unknown."""
        return sum(self.by_device or ())

    def with_workers(self, workers: int) -> "ServerShare":
        """Return the share with 0 MiB added for each device of RPC workers, where its memory is unknown."""
        return self if self.by_device is None else replace(self, by_device=(*self.by_device, *(0,) * workers))


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts of a machine that plans depend on. Memory is in MiB, bandwidth in 10^9 bytes per second.

    `nominal_gb` is the advertised size of the GPU's memory. `free_mib`, `host_mib` and `gpu_free_mib` are free as if
    this user's own running servers were stopped, because a new start replaces them. `host_mib` is the available host
    memory, None if unknown. The memory of a `unified` GPU is the host's: `host_mib` is then the part that the GPU
    cannot take, and `carve_out_mib` the free part that only the GPU can (see `host_beside_mib`). `host_gb_s` is the
    bandwidth of host memory, None if unknown. `gpus` is the number of GPUs to split a model over, and `gpu_free_mib`
    the free memory of each. `gpu_name` is the name of all of them, or "2 x A + B" for `unlike_gpus`. `overheads_mib` is
    what driver and process take on each GPU besides the engine's buffers, () if nothing is known. `cards` has what is
    known of each GPU's model, () if nothing is; `power_limit_w` is what the GPU may draw, None for its board's power.
    `has_expert_cache`: the engine at hand can keep copies of experts on the GPU (--moe-cache-mib), or none is at hand,
    and the newest stable one can. `spec_types` are the drafters of that engine. `own` is the memory of those servers,
    `by_device_now_mib` the free memory of each device while they run. `read_at` is the time of reading in seconds since
    the epoch, None if nothing was read.
    `threads` is the number that an engine has to be told to start, None for its own choice: see `Host.threads`.
    `headless`: no display uses the GPUs. `described`: given by options, not read from a machine. `no_gpu`: read,
    without a usable GPU. `notes` are sentences for users on how the memory is known, `cautions` on what slows the GPUs.
    """

    backend: Backend
    nominal_gb: float
    free_mib: int
    margin_mib: int
    host_mib: int | None = None
    bandwidth_gb_s: float | None = None
    host_gb_s: float | None = None
    gpu_name: str | None = None
    cards: tuple[Card, ...] = ()
    power_limit_w: float | None = None
    gpus: int = 1
    unlike_gpus: bool = False
    gpu_free_mib: tuple[int, ...] = ()
    overheads_mib: tuple[int, ...] = ()
    unified: bool = False
    carve_out_mib: int = 0
    headless: bool = False
    described: bool = False
    no_gpu: bool = False
    has_expert_cache: bool = True
    spec_types: frozenset[str] = STABLE_SPEC_TYPES
    threads: int | None = None
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    own: tuple[ServerShare, ...] = ()
    by_device_now_mib: tuple[int, ...] = ()
    read_at: float | None = None

    @property
    def has_host_memory(self) -> bool:
        """Whether experts can move to a memory other than the one that the model runs in."""
        return self.backend != "cpu" and not self.unified

    @property
    def memory_fields(self) -> dict[str, Any]:
        """The fields of PlanSettings that state this machine's memory."""
        return {
            "gpus": self.gpus,
            "gpu_free_mib": self.gpu_free_mib,
            "overheads_mib": self.overheads_mib,
            "cards": self.cards,
            "host_aside_mib": self.host_mib if self.unified else None,
        }

    def host_beside_mib(self, gpu_mib: int) -> int | None:
        """Return the host memory that is available while `gpu_mib` are used on the GPU; None if unknown."""
        if self.host_mib is None or not self.unified:
            return self.host_mib
        return self.host_mib + max(0, self.free_mib - max(gpu_mib, self.carve_out_mib))

    @property
    def free_now_mib(self) -> int:
        """Memory that is free now, with all of our own servers running, in MiB."""
        return sum(self.by_device_now_mib) if self.own else self.free_mib

    @property
    def own_mib(self) -> int | None:
        """Memory of all of our own servers, in MiB; None if that of one is unknown."""
        return None if any(each.by_device is None for each in self.own) else sum(each.mib for each in self.own)

    @property
    def own_pids(self) -> frozenset[int]:
        """Process ids of our own servers' engines."""
        return frozenset(each.engine_pid for each in self.own)

    @property
    def own_notes(self) -> tuple[str, ...]:
        """Sentences for users on the memory of our own servers, which counts as free as far as it is known."""
        unknown = tuple(
            fill_template(_OWN_UNKNOWN, {"name": each.model}) for each in self.own if each.by_device is None
        )
        counted = [each for each in self.own if each.mib]
        # In this case no server is counted as stopped: see `with_servers_running`.
        if not counted or self.free_now_mib >= self.free_mib:
            return unknown
        sentence = plural_message(
            "Free memory is counted as if {names} were stopped, which frees {own:,} MiB."
            " While it runs, {beside:,} MiB are free.",
            "Free memory is counted as if {names} were stopped, which frees {own:,} MiB."
            " While they run, {beside:,} MiB are free.",
            len(counted),
            names=", ".join(dict.fromkeys(each.model for each in counted)),
            own=sum(each.mib for each in counted),
            beside=self.free_now_mib,
        )
        return sentence, *unknown

    def with_servers_running(self, *, ending: Collection[int] = ()) -> "Situation":
        """Return the situation of a server that runs beside our own servers.

        Servers whose engine pids are in `ending` count as stopped; `own` has the others.
        """
        staying = tuple(each for each in self.own if each.engine_pid not in ending)
        if not staying:
            return replace(self, own=(), by_device_now_mib=()) if self.own else self
        alone = self.gpu_free_mib or (self.free_mib,)
        now = list(self.by_device_now_mib)
        for each in self.own:
            if each.engine_pid in ending and each.by_device is not None:
                now = [free + had for free, had in zip(now, each.by_device, strict=True)]
        free = tuple(min(most, here) for most, here in zip(alone, now, strict=True))
        gone_mib = sum(each.host_mib for each in staying)
        return replace(
            self,
            free_mib=sum(free),
            gpu_free_mib=free if self.gpu_free_mib else (),
            host_mib=None if self.host_mib is None else max(0, self.host_mib - gone_mib),
            own=staying,
            by_device_now_mib=free,
        )


def describe_machine(
    gpu_memory_gib: float | Sequence[float],
    *,
    card: Card | None = None,
    free_mib: int | None = None,
    headless: bool = False,
    host_gib: float | None = None,
    backend: Backend | None = None,
) -> Situation:
    """Return the situation of a machine described by options: one GPU, or several with the sizes of `gpu_memory_gib`.

    Without `card`, each GPU is a typical one of its size. The default backend is cuda, and vulkan for an AMD or Intel
    `card`. Raises BadOption for an impossible memory size, and for the backend cpu without host memory.
    """
    sizes = tuple(gpu_memory_gib) if isinstance(gpu_memory_gib, Sequence) else (gpu_memory_gib,)
    for size in sizes:
        if not 0.5 <= size <= 4_096:
            raise BadOption(
                message("--gpu-memory {gpu_memory_gib:g} is out of range.", gpu_memory_gib=size),
                message("It goes from 0.5 to 4096 GiB."),
            )
    total = sum(sizes)
    if backend == "cpu":
        if host_gib is None:
            raise BadOption(
                message("--backend cpu uses host memory, but --host-memory is missing."),
                message("Add --host-memory, or omit --gpu-memory to plan for this computer."),
            )
        _check_free(free_mib, host_gib, "The host")
        notes = () if free_mib is not None else host_notes(host_gib)
        free_mib = available_mib(host_gib) if free_mib is None else free_mib
        return processor_situation(host_gib, free_mib, described=True, notes=notes)
    _check_free(free_mib, total, "The GPU")
    notes = host_notes(host_gib)
    by_gpu = [usable_mib(size) for size in sizes]
    if free_mib is None:
        free_mib = sum(by_gpu)
        notes = (
            message(
                "About {free_mib:,} MiB of {gpu_memory_gib:g} GiB are usable, as on measured cards.",
                gpu_memory_gib=total,
                free_mib=free_mib,
            ),
            *notes,
        )
    else:
        by_gpu = [usable * free_mib // sum(by_gpu) for usable in by_gpu]
    found = [card or typical_card(size) for size in sizes]
    cards = tuple(each for each in found if each) if all(found) else ()
    if cards and card is None:
        notes = (*notes, _name_typical(*cards))
    backend = backend or ("vulkan" if card and not _is_nvidia(card) else "cuda")
    return Situation(
        backend=backend,
        nominal_gb=total,
        free_mib=free_mib,
        margin_mib=(HEADLESS_MARGIN_MIB if headless else DESKTOP_MARGIN_MIB) * len(sizes),
        host_mib=None if host_gib is None else available_mib(host_gib),
        bandwidth_gb_s=cards[0].bandwidth_gb_s if len(cards) == 1 else None,
        gpu_name=card.name if card else None,
        cards=cards,
        gpus=len(sizes),
        gpu_free_mib=tuple(by_gpu) if len(sizes) > 1 else (),
        overheads_mib=tuple(expected_overhead_mib(backend, each) for each in found),
        headless=headless,
        described=True,
        notes=notes,
    )


def describe_unified_machine(
    memory_gib: float, *, card: Card | None = None, free_mib: int | None = None, backend: Backend | None = None
) -> Situation:
    """Return the situation of a described machine whose GPU shares `memory_gib` with the host.

    GPU and host share `free_mib`; by default, what a host leaves (available_mib). Without `card`, the GPU is a typical
    one. Raises BadOption for an impossible memory size.
    """
    if not 4 <= memory_gib <= 4_096:
        raise BadOption(
            message("--unified-memory {memory_gib:g} is out of range.", memory_gib=memory_gib),
            message("It goes from 4 to 4096 GiB."),
        )
    _check_free(free_mib, memory_gib, "The host")
    notes = host_notes(memory_gib) if free_mib is None else ()
    if card is None:
        card = typical_card(memory_gib, unified=True)
        notes = (*notes, _name_typical(card)) if card else notes
    free_mib = available_mib(memory_gib) if free_mib is None else free_mib
    backend = backend or ("cuda" if card and _is_nvidia(card) else "vulkan")
    return Situation(
        backend=backend,
        nominal_gb=memory_gib,
        free_mib=free_mib,
        margin_mib=DESKTOP_MARGIN_MIB,
        host_mib=0,  # the GPU can take all that the system leaves
        bandwidth_gb_s=card.bandwidth_gb_s if card else None,
        gpu_name=card.name if card else None,
        cards=(card,) if card else (),
        overheads_mib=(expected_overhead_mib(backend, card),),
        unified=True,
        described=True,
        notes=notes,
    )


def _name_typical(*cards: Card) -> str:
    """Return the note on the cards whose speed is taken for a machine that was described by its memory alone."""
    names = " + ".join(each.name for each in cards)
    return message("Speeds are those of a typical card of this size: {names}.", names=names)


def _is_nvidia(card: Card) -> bool:
    return card.name.startswith(("NVIDIA", "Tesla"))


def _check_free(free_mib: int | None, size_gib: float, owner: str) -> None:
    most = int(size_gib * 1_024)
    if free_mib is not None and not 0 <= free_mib <= most:
        raise BadOption(
            message("--free-memory {free_mib} is out of range.", free_mib=free_mib),
            message("{owner} has {most:,} MiB.", owner=owner, most=most),
        )


def available_mib(host_gib: float) -> int:
    """Return the MiB taken to be available on a host with `host_gib`, if its free memory is unknown."""
    return int(host_gib * 1_024) - min(int(host_gib * 1_024 * _HOST_RESERVE), _MOST_RESERVE_MIB)


def host_notes(host_gib: float | None) -> tuple[str, ...]:
    """Return the note on how host memory named by the user is counted."""
    if host_gib is None:
        return ()
    return (fill_template(_HOST_COUNTED, {"host_gib": host_gib, "counted": available_mib(host_gib)}),)


def usable_mib(gpu_memory_gib: float) -> int:
    """Return the usable MiB of a GPU with `gpu_memory_gib`."""
    return int(gpu_memory_gib * 1_024 * USABLE)


def processor_situation(
    memory_gib: float, free_mib: int, *, described: bool = False, no_gpu: bool = False, notes: tuple[str, ...] = ()
) -> Situation:
    """Return the situation of a model that runs on the processor, in host memory."""
    return Situation(
        backend="cpu",
        nominal_gb=memory_gib,
        free_mib=free_mib,
        margin_mib=DESKTOP_MARGIN_MIB,
        host_mib=free_mib,
        described=described,
        no_gpu=no_gpu,
        notes=notes,
    )
