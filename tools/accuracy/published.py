"""Published measurements and earlier predictions, to be compared with the formula. Weights are estimated by the
catalogue's rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from launcher.machine.cards import find_card
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.catalogue_load import load_catalogue
from launcher.models.compute_buffers import Backend
from launcher.models.memory import MemoryEstimate, PlanSettings, estimate_memory
from launcher.models.overhead import expected_overhead_mib
from launcher.models.preset import Preset
from launcher.models.weights import weights_by_rules

_MIB = 2**20
_GIB_MIB = 1_024
MOE, DENSE = "qwen3.6-35b-a3b-mtp", "qwen3.8-27b"
_LOGS = "qiip's engine logs, build 10964"
_QM = "sudoingX/qwen38-mtp"


@dataclass(frozen=True, slots=True)
class Run:
    """A model in a published run. `size_bytes` is given if the catalogue has no file of that size."""

    model: str
    quant: str
    setting: PlanSettings
    size_bytes: int | None = None

    def estimate(self) -> MemoryEstimate | None:
        """Return the formula's estimate; None if the size of the file is unknown, because an estimated size would prove
        nothing.
        """
        entry = load_shipped_catalogue().find(self.model)
        file = entry.file(self.quant) or ModelFile(quant=self.quant, file=self.quant)
        sized = replace(file, size_bytes=self.size_bytes or file.size_bytes)
        return _estimate(entry, sized, self.setting) if sized.size_bytes else None

    def total_mib(self) -> float:
        """Return the formula's total in MiB. Raises ValueError when the file's size is unknown."""
        found = self.estimate()
        if found is None:
            raise ValueError(f"the size of {self.quant} is unknown")
        return found.parts.total / _MIB


@dataclass(frozen=True, slots=True)
class Log:
    """A log in which the engine printed every part, in MiB; `peaks` by GPU include the driver's memory."""

    run: Run
    parts: Mapping[str, float]
    peaks: Mapping[str, int]
    source: str = _LOGS


@dataclass(frozen=True, slots=True)
class Total:
    """GPU memory in use in MiB while a model was served, on AMD's cards. `unknown` lists unreported facts."""

    gpu: str
    run: Run
    measured_mib: float
    source: str
    unknown: str = "nothing"


@dataclass(frozen=True, slots=True)
class Step:
    """By how many MiB memory grew between two runs of one file on one GPU: weights and driver cancel out."""

    gpu: str
    file: str
    before: Run
    after: Run
    measured_mib: float
    source: str

    def formula_mib(self) -> float:
        """Return by how much the formula grows, in MiB."""
        return self.after.total_mib() - self.before.total_mib()


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of an article about the memory of a run."""

    article: str
    run: Run
    claimed: str


@cache
def load_shipped_catalogue() -> Catalogue:
    """Return the catalogue as it is shipped, without the user's own models and presets."""
    return load_catalogue(Path(__file__).parent / "no-own-models", hub_figures=False)


def _estimate(entry: ModelEntry, file: ModelFile, setting: PlanSettings) -> MemoryEstimate | None:
    if entry.geometry is None:
        return None
    weights = weights_by_rules(entry, file, entry.geometry)
    return None if weights is None else estimate_memory(entry.geometry, weights, setting)


def list_predictions() -> list[tuple[ModelEntry, Preset, float]]:
    """Return the presets whose memory was predicted before, with the formula's total in MiB."""
    found = []
    for entry in load_shipped_catalogue().models:
        for preset in entry.presets:
            file = entry.file(preset.quant)
            if preset.predicted_mib is None or file is None:
                continue
            setting = PlanSettings(
                context=preset.ctx,
                kv=preset.kv,
                draft=preset.draft,
                ubatch=preset.ubatch,
                slots=preset.slots,
                n_cpu_moe=preset.n_cpu_moe,
            )
            result = _estimate(entry, file, setting)
            if result is not None:
                found.append((entry, preset, result.parts.total / _MIB))
    return found


def _make_dense_run(
    quant: str, context: int, draft: int, size: int | None = None, backend: Backend = "cuda", card: str | None = None
) -> Run:
    setting = PlanSettings(context=context, kv="q4_0", draft=draft, backend=backend)
    return Run(DENSE, quant, _on_card(setting, card), size)


def _on_card(setting: PlanSettings, name: str | None) -> PlanSettings:
    """Return the setting with what is known of a card; unchanged without a name."""
    if name is None:
        return setting
    card = find_card(name)
    return replace(setting, cards=(card,), overheads_mib=(expected_overhead_mib(setting.backend, card),))


LOGS = (
    Log(
        Run(MOE, "UD-Q3_K_XL", PlanSettings(context=262_144, kv="q8_0", draft=2, ubatch=256)),
        {
            "weights": 15_903.7,
            "kv": 2_720.0,
            "recurrent": 188.44,
            "draft_kv": 512.0,
            "compute": 666.3,
            "draft_compute": 148.0,
        },
        {"L4": 20_422, "A30": 20_469},
    ),
    Log(
        Run(DENSE, "UD-Q4_K_S", PlanSettings(context=262_144, kv="q4_0", draft=2, ubatch=256)),
        {
            "weights": 14_115.3,
            "kv": 4_608.0,
            "recurrent": 448.88,
            "draft_kv": 1_024.0,
            "compute": 1_192.3,
            "draft_compute": 162.0,
        },
        {"L4": 21_818, "A30": 21_865},
    ),
)
_FIRST = 17_923_394_624  # UD-Q4_K_XL of Qwen3.8-27B as first uploaded, until 2026-08-19
_EMBEDDING = "types of embedding and head"
_5060_TI, _4060_TI = f"{_QM}, sweeps/rtx-5060-ti.md", f"{_QM}, sweeps/rtx-4060-ti.md"
_5090, _RADEON = f"{_QM}, sweeps/rtx-5090.md", f"{_QM}, sweeps/radeon.md"
TOTALS = (
    *(
        Total(
            "Radeon AI PRO R9700 (Vulkan)",
            _make_dense_run("UD-Q4_K_XL", 262_144, draft, _FIRST, backend="vulkan", card="AMD Radeon AI PRO R9700"),
            measured_gb * 1e9 / _MIB,
            f"{_RADEON}, PR #8",
            f"{_EMBEDDING}; GB read as 10^9 bytes",
        )
        for draft, measured_gb in ((0, 22.53), (2, 24.55), (4, 24.87))
    ),
    *(
        Total(
            "RX 7900 XTX (ROCm)",
            _make_dense_run("UD-Q4_K_M", 131_072, draft, backend="rocm", card="AMD Radeon RX 7900 XTX"),
            measured_gib * _GIB_MIB,
            f"{_RADEON}, @vijay-14",
            "what else was on the GPU",
        )
        for draft, measured_gib in ((0, 18.06), (2, 19.41), (3, 19.56), (4, 19.71))
    ),
)


def _make_step(gpu: str, file: str, source: str, before: tuple[int, int], after: tuple[int, int], mib: float) -> Step:
    runs = [_make_dense_run("UD-Q4_K_M", context, draft) for context, draft in (before, after)]
    return Step(gpu, file, runs[0], runs[1], mib, source)


_TWICE, _LONG = 131_072, 262_144
_README = f"{_QM}, README.md, @hypertectonic"
STEPS = (
    _make_step("RTX 3090 Ti", "Q4_K_M", _README, (_TWICE, 0), (_LONG, 0), 21_786 - 18_842),
    _make_step("RTX 3090 Ti", "Q4_K_M", _README, (_TWICE, 2), (_LONG, 2), 23_718 - 20_134),
    _make_step("RTX 5090", "Q6_K", _README, (_TWICE, 0), (_LONG, 0), 27_385 - 24_441),
    _make_step("RTX 5090", "Q6_K", _README, (_TWICE, 2), (_LONG, 2), 29_381 - 25_797),
    _make_step("RTX 5090", "UD-Q4_K_XL", f"{_5090}, PR #47", (_TWICE, 1), (_TWICE, 4), 21_518 - 21_068),
    _make_step("RTX 5090", "UD-Q4_K_XL", f"{_5090}, PR #47", (_TWICE, 1), (_TWICE, 6), 21_816 - 21_068),
    _make_step("RTX 5060 Ti", "Q4-XYZ-v2", _5060_TI, (32_768, 2), (32_768, 4), 15_704 - 15_404),
    _make_step("RTX 4060 Ti", "Q4-XYZ-v2", _4060_TI, (32_768, 2), (32_768, 3), 15_830 - 15_678),
)


def _make_moe_run(
    quant: str, context: int, kv: str, draft: int, n_cpu_moe: int = 0, *, card: str | None = None, model: str = MOE
) -> Run:
    return Run(model, quant, _on_card(PlanSettings(context, kv, draft, n_cpu_moe=n_cpu_moe), card))


_ONE, _GPU_16 = "249 t/s on a mobile RTX 5090, 24 GB", "144 t/s on an RTX 5060 Ti, 16 GB"
_NO_HEAD = "qwen3.6-35b-a3b"
_MOBILE, _TI = "RTX 5090 Laptop", "5060 Ti 16GB"
CLAIMS = (
    Claim(_ONE, _make_moe_run("UD-Q3_K_XL", 262_144, "q4_0", 3, card=_MOBILE), "about 21.9 GB"),
    *(
        Claim(_ONE, _make_moe_run("UD-Q4_K_XL", context, "q4_0", 3, card=_MOBILE), "too much for 23,982 MiB")
        for context in (32_768, 65_536, 131_072, 262_144)
    ),
    *(
        Claim(_GPU_16, _make_moe_run("UD-IQ3_S", context, "q4_0", 2, card=_TI), says)
        for context, says in ((65_536, "the most for 15,840 MiB"), (98_304, "too much"), (131_072, "MTP adds 2.8 GB"))
    ),
    Claim(_GPU_16, _make_moe_run("UD-IQ3_S", 131_072, "q4_0", 0, card=_TI), "(the same without MTP)"),
    Claim(
        _GPU_16,
        _make_moe_run("UD-IQ3_S", 131_072, "q4_0", 0, card=_TI, model=_NO_HEAD),
        "(from the repository without MTP)",
    ),
    Claim(_GPU_16, _make_moe_run("UD-IQ3_S", 262_144, "q4_0", 0, card=_TI, model=_NO_HEAD), "fits without MTP"),
    Claim("80 t/s on 12 GB", _make_moe_run("UD-Q4_K_XL", 131_072, "q8_0", 2, 28), "fits with experts on the CPU"),
)
