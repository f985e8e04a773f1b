"""The table of files that are mistaken for models: what each is, what it is for, and how it is recognised.

A GGUF file is recognised by its header: `general.architecture`, `general.type`, and its tensors. Its name is only a
hint, for files whose header was not read yet. Other files that end in .gguf are recognised by their first bytes.

Architectures and keys: llama.cpp (src/llama-arch.cpp, gguf-py/gguf/constants.py, tools/imatrix,
tools/cvector-generator), ComfyUI-GGUF, stable-diffusion.cpp, and the converters of programs for speech.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

from launcher.base.errors import ModelBroken, ModelUnexpected
from launcher.base.messages import FaceName, Message, enumerate_texts, join_messages, message
from launcher.models.drafters import DRAFTERS

if TYPE_CHECKING:
    from launcher.models.gguf import GgufHeader, GgufModel

    Header: TypeAlias = GgufHeader | GgufModel  # of a whole model: in a part of a split one, tensors are missing

Role = Literal["draft", "mmproj", "other"]


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that is no model which llama-server could start.

    `role` is what the library calls it, `label` is for lists. `what` completes "NAME is", and says what the file is
    for; `cure` says what to do. `beside`: it is loaded together with a model. `in_name` is what its name hints at.
    """

    name: str
    role: Role
    label: Message
    what: Message
    cure: Message
    fits: Callable[[Header], bool]
    beside: bool = False
    in_name: re.Pattern[str] | None = None

    @property
    def sentence(self) -> Message:
        """What the file is and what to do, for a text beside its name."""
        return join_messages(message("This is {what}.", what=self.what), self.cure)


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file of a repository that is no model: its name there, its size in bytes, and its kind."""

    file: str
    size_bytes: int | None
    kind: FileKind


def recognise_file(model: Header) -> FileKind | None:
    """Return the kind of a file by its header, of a split one by those of all parts; None for a model."""
    return next((kind for kind in KINDS if kind.fits(model)), None)


def recognise_name(path: str) -> FileKind | None:
    """Return the kind that a file's name hints at, before its header was read; None for a model."""
    name = PurePosixPath(path.lower()).name
    return next((kind for kind in KINDS if kind.in_name is not None and kind.in_name.search(name)), None)


def find_kind(name: str | None) -> FileKind | None:
    """Return the kind of that name; None if there is none."""
    return KINDS_BY_NAME.get(name or "")


def kind_of_broken(error: ModelBroken) -> FileKind:
    """Return the kind of a file whose header was refused."""
    return KINDS_BY_NAME[str(error.facts.get("file_kind", "unreadable"))]


def unusable_error(
    kind: FileKind, path: PurePath | str, name: str | None = None, *, models: tuple[str, ...] = ()
) -> ModelUnexpected:
    """Return the error for a file that was named as a model; `name` is how to call it, by default its file name.

    `models` are the names of those that it belongs to.
    """
    shown = name or PurePath(path).name
    its_models = message("It drafts for {models}.", models=enumerate_texts(models)) if models else None
    return ModelUnexpected(
        message("{name} is {what}.", name=shown, what=kind.what),
        join_messages(its_models, kind.cure),
        path=str(path),
        file_kind=kind.name,
    )


def is_head_alone(model: Header) -> bool:
    """Return whether a file holds an MTP head and not the blocks of its model (`convert_hf_to_gguf.py --mtp`)."""
    trunk = (model.block_count or 0) - model.promised_heads
    if not model.promised_heads or trunk <= 0:
        return False
    names = {tensor.name for tensor in model.tensors}
    return f"blk.{trunk}.nextn.eh_proj.weight" in names and not any(name.startswith("blk.0.") for name in names)


# How a header is told.


def _has_architecture(*names: str, like: str = "") -> Callable[[Header], bool]:
    """Return a test of the architecture: one of `names`; or one `like` an expression, in a file without a trunk.

    An architecture that is only like a known one may be a language model that is newer than this table.
    """
    pattern = re.compile(like) if like else None

    def fits(model: Header) -> bool:
        name = model.architecture.casefold()
        return name in names or (pattern is not None and bool(pattern.search(name)) and not _has_trunk(model))

    return fits


def _has_trunk(model: Header) -> bool:
    """Return whether a file has the tensors of a language model under the names that llama.cpp uses."""
    names = {tensor.name for tensor in model.tensors}
    return "token_embd.weight" in names and any(name.startswith("blk.") for name in names)


def _has_tensors(model: Header, *, prefixes: tuple[str, ...] = (), suffixes: tuple[str, ...] = ()) -> bool:
    return any(tensor.name.startswith(prefixes) or tensor.name.endswith(suffixes) for tensor in model.tensors)


def _read_text(model: Header, key: str) -> str:
    value = model.metadata.get(key)
    return value.casefold() if isinstance(value, str) else ""


def _read_type(model: Header) -> str:
    return _read_text(model, "general.type")


def _has_vocabulary(model: Header) -> bool:
    return bool(model.array_lengths.get("tokenizer.ggml.tokens"))


def _is_control_vector(model: Header) -> bool:
    by_type = _read_text(model, "adapter.type").replace("_", "") == "controlvector"
    return by_type or model.architecture == "controlvector"


def _is_adapter(model: Header) -> bool:
    return _read_type(model) == "adapter" or _has_tensors(model, suffixes=(".lora_a", ".lora_b"))


def _is_imatrix(model: Header) -> bool:
    keys = (*model.metadata, *model.array_lengths)
    return "imatrix" in (_read_type(model), model.architecture) or any(key.startswith("imatrix.") for key in keys)


def _is_projector(model: Header) -> bool:
    by_type = _read_type(model) in ("mmproj", "clip-vision")
    return by_type or model.architecture in ("clip", "mmproj", "clip-vision")


def _is_head(model: Header) -> bool:
    name, blocks = model.architecture.casefold(), model.block_count or 0
    by_name = name.endswith(("-assistant", "_assistant")) or (name.endswith(("-mtp", "_mtp")) and blocks <= _MOST_HEADS)
    return by_name or is_head_alone(model)


def _is_dspark(model: Header) -> bool:
    """Return whether it is a DFlash draft with DSpark's Markov head (common/speculative.cpp of llama.cpp b11549)."""
    has_head = any(tensor.name == "markov_w1.weight" for tensor in model.tensors)
    return has_head or model.architecture.casefold() in ("dspark", "dspark-draft")


def _is_draft(model: Header) -> bool:
    by_type = _read_type(model) in ("draft", "drafter", "speculator")
    return by_type or bool(_DRAFTS.search(model.architecture.casefold()))


def _is_vocabulary(model: Header) -> bool:
    return _read_type(model) == "vocab" or (not model.tensors and _has_vocabulary(model))


def _is_image_model(model: Header) -> bool:
    return _IMAGES(model) or (not _has_trunk(model) and _has_tensors(model, prefixes=_IMAGE_TENSORS))


def _is_without_language(model: Header) -> bool:
    named = _has_tensors(model, prefixes=("token_embd.", "blk."))
    return not named and not _has_vocabulary(model)


_MOST_HEADS = 4
"""The most blocks of a file that holds MTP heads alone, by its architecture's name."""
_DRAFTS = re.compile(r"(^|[-_])(draft|drafter|medusa|hydra|speculator|mlp_speculator)\d?($|[-_])")
_DIFFUSION = _has_architecture("dream", "llada", "llada-moe", "rnd1", "diffusion-gemma")
_IMAGES = _has_architecture(
    *("flux", "flux2", "sd1", "sd2", "sd3", "sd35", "sdxl", "aura", "auraflow", "hidream", "cosmos", "ltxv", "ltx2"),
    *("ltxv_upscaler", "hyvid", "hyvideo", "hunyuan_video", "hunyuan_image", "wan", "lumina", "lumina2", "qwen_image"),
    *("z_image", "zimage", "chroma", "ideogram", "krea2", "minimax_h3", "minimax_h3_vae", "pixart", "kolors"),
    *("omnigen2", "mochi", "cogvideox", "kandinsky5", "pig", "vae", "esrgan"),
    like=r"^(flux|sd\d|sdxl|stable[-_]?diffusion|aura|hidream|cosmos|ltx|hyvid|wan\d|lumina|ideogram|krea|pixart|omnigen|"
    r"cogvideo|kandinsky|anima)|[-_](image|video|vae|dit|unet|diffusion)$",
)
_IMAGE_TENSORS = (
    *("model.diffusion_model.", "first_stage_model.", "cond_stage_model.", "double_blocks.", "single_blocks."),
    *("joint_blocks.", "transformer_blocks.", "double_layers.", "input_blocks.", "down_blocks."),
)
"""Names of the tensors of diffusion models; stable-diffusion.cpp writes no architecture."""


def _name_hint(words: str, *, first: bool = False) -> re.Pattern[str]:
    """Return an expression for one of `words` in a file's name in lower case, with `first` only at its beginning."""
    return re.compile(rf"^(?:{words})[-_.]" if first else rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])")


_WITH_ITS_MODEL = message("Name the model that it belongs to. The files beside that are found automatically.")
_NO_DRAFTER = message("Start the model that it was made for. llama-server cannot draft with this file.")
_OTHER_PROGRAM = message("llama-server runs language models. Open it in the program that it was made for.")
_DRAFT, _UNKNOWN = message("draft"), message("unknown file")

KINDS: tuple[FileKind, ...] = (
    # The first that fits counts.
    FileKind(
        "control-vector",
        "other",
        message("control vector"),
        message("a control vector, which changes the tone of a model and holds none"),
        message("Start the model that it was made for; llama-server takes the vector by --control-vector."),
        _is_control_vector,
        beside=True,
        in_name=_name_hint("control[-_]?vector|cvector"),
    ),
    FileKind(
        "lora",
        "other",
        message("LoRA adapter"),
        message("a LoRA adapter, which changes a model and holds none"),
        message("Start the model that it was made for; llama-server takes the adapter by --lora."),
        _is_adapter,
        beside=True,
        in_name=_name_hint("lora|adapter"),
    ),
    FileKind(
        "imatrix",
        "other",
        message("imatrix"),
        message("an importance matrix (imatrix), from which quants of a model are made"),
        message("Choose a quant of the model, such as Q4_K_M."),
        _is_imatrix,
        # Many publishers write imatrix into the names of quants, too.
        in_name=re.compile(r"^(?!.*(?:^|[-_.])(?:i?q\d|bf16|f16|mxfp4)).*(?<![a-z0-9])imatrix(?![a-z0-9])"),
    ),
    FileKind(
        "mmproj",
        "mmproj",
        message("projector"),
        message("a vision projector, with which a model sees pictures or hears sound"),
        _WITH_ITS_MODEL,
        _is_projector,
        beside=True,
        in_name=re.compile("mmproj"),
    ),
    FileKind(
        "mtp-head",
        "draft",
        _DRAFT,
        message("an MTP head without its model, for which it drafts tokens"),
        _WITH_ITS_MODEL,
        _is_head,
        beside=True,
        in_name=re.compile(r"^(?:mtp|nextn)[-_]|-assistant(?:\.gguf$|-(?:ud-)?(?:i?q\d|bf16|f16|f32|mxfp4))"),
    ),
    *(
        FileKind(
            name,
            "draft",
            message("{family} draft", family=DRAFTERS[name].title),
            message(
                "a draft ({family}), which proposes tokens to the model that it was trained for",
                family=DRAFTERS[name].title,
            ),
            message(
                "Start the model that it was made for[, with {option}].",
                option=FaceName(f"--drafter {DRAFTERS[name].spec_type}"),
            ),
            fits,
            beside=True,
            in_name=_name_hint(words),
        )
        for name, fits, words in (
            ("eagle3", _has_architecture("eagle3", "eagle-3", "eagle", "eagle2"), "eagle-?3"),
            ("dspark", _is_dspark, "dspark"),
            ("dflash", _has_architecture("dflash", "dflash2", "dflash-draft", "dflash_draft"), "dflash2?"),
            ("lilicorr", _has_architecture("lilicorr"), "lilicorr"),
        )
    ),
    FileKind(
        "draft",
        "draft",
        _DRAFT,
        message("a draft, which proposes tokens to the model that it was trained for"),
        _NO_DRAFTER,
        _is_draft,
        beside=True,
        in_name=_name_hint("medusa|speculator"),
    ),
    FileKind(
        "vocabulary",
        "other",
        message("vocabulary"),
        message("a vocabulary without a model, with which tokenizers are tested"),
        message("Get a file of the model itself."),
        _is_vocabulary,
        in_name=_name_hint("(?:ggml-)?vocab", first=True),
    ),
    FileKind(
        "image-model",
        "other",
        message("image model"),
        message("a model for images or video, or a part of one"),
        message("llama-server runs language models. Use stable-diffusion.cpp or ComfyUI for it."),
        _is_image_model,
        in_name=_name_hint(r"vae|flux\.?\d\w*|sdxl|sd3(?:\.5)?|wan2\.?\d|qwen-image\w*|ltxv?|hidream|lumina2?"),
    ),
    FileKind(
        "diffusion-language-model",
        "other",
        message("diffusion model"),
        message("a diffusion language model, which writes all words of a text at once"),
        message("llama-server cannot generate with it. Use llama-diffusion-cli of llama.cpp for it."),
        # llm_arch_is_diffusion of llama.cpp (src/llama-arch.cpp); a newer one has their key.
        lambda model: _DIFFUSION(model) or "diffusion.shift_logits" in model.metadata,
        in_name=_name_hint(r"llada[\w.]*|diffusion[-_]?gemma\w*"),
    ),
    FileKind(
        "speech-recognition",
        "other",
        message("speech model"),
        message("a speech model, which writes down what it hears"),
        message("llama-server runs language models. Use whisper.cpp or the program that it was made for."),
        _has_architecture(
            *("whisper", "parakeet", "parakeet_tdt", "canary", "moonshine", "wav2vec2", "sensevoice", "paraformer"),
            *("silero_vad", "silero", "pyannote", "cohere-transcribe", "zipformer", "nemotron-asr", "qwen3-asr"),
            like=r"^(whisper|parakeet|canary|moonshine|wav2vec|sense[-_]?voice|paraformer|silero)|[-_](asr|stt|vad|ctc|tdt)$",
        ),
        in_name=_name_hint(r"(?:ggml-)?whisper|parakeet", first=True),
    ),
    FileKind(
        "speech-synthesis",
        "other",
        message("speech model"),
        message("a speech model or a part of one, which makes sound"),
        _OTHER_PROGRAM,
        _has_architecture(
            *("wavtokenizer-dec", "kokoro", "kokoro-voice", "dia", "parler-tts", "orpheus", "bark", "piper", "vits"),
            *("melotts", "snac", "encodec", "mimi", "dac", "neucodec", "chatterbox", "cosyvoice", "csm", "zonos"),
            *("f5-tts", "styletts2", "vibevoice", "musicgen", "stable-audio", "ace-step", "minimax_music3"),
            like=r"tts|vocoder|codec|^(kokoro|chatterbox|cosyvoice|wavtokenizer|vits)|[-_](voice|speech|audio|music)$",
        ),
        in_name=_name_hint("wavtokenizer|kokoro|vocoder|snac"),
    ),
    FileKind(
        "text-encoder",
        "other",
        message("text encoder"),
        message("a text encoder, with which models for images read prompts"),
        _OTHER_PROGRAM,
        _has_architecture("t5encoder", "t5xxl", "umt5", "clip_l", "clip_g", "clip-l", "clip-g"),
        in_name=_name_hint(r"u?m?t5[-_](?:v1[-_.]1[-_])?(?:base|large|xl|xxl)[-_]encoder\w*|t5xxl\w*|clip_[lg]"),
    ),
    FileKind(
        "big-endian",
        "other",
        message("big-endian file"),
        message("in big-endian byte order, made for another kind of processor"),
        message("Get the ordinary (little-endian) file of this model."),
        lambda _: False,  # the parser refuses it
        in_name=_name_hint("be|big[-_]?endian"),
    ),
    FileKind(
        "unreadable",
        "other",
        _UNKNOWN,
        message("a file whose header cannot be read"),
        message("Get another file of this model."),
        lambda _: False,
    ),
    FileKind(
        "empty",
        "other",
        _UNKNOWN,
        message("a GGUF file without tensors: there is no model in it"),
        message("Get a file of the model itself."),
        lambda model: not model.tensors,
    ),
    FileKind(
        "nameless",
        "other",
        _UNKNOWN,
        message("a GGUF file that does not name its architecture, so that llama.cpp cannot load it"),
        message("Get a file of the model that llama.cpp's own converter wrote."),
        _has_architecture("unknown"),
    ),
    FileKind(
        "no-language-model",
        "other",
        _UNKNOWN,
        message("no language model: it has neither a vocabulary nor embeddings of tokens"),
        _OTHER_PROGRAM,
        _is_without_language,
    ),
)


KINDS_BY_NAME = {kind.name: kind for kind in KINDS}


# Files that are no GGUF.

_GET_GGUF = message("Get a GGUF file of this model.")
_AGAIN = message("Download it again.")
_PAGE = message("it is a page of text, such as the error of a website"), _AGAIN
_OLD = message("it is in the format that llama.cpp used before GGUF, until August 2023"), _GET_GGUF
_STATE = message("it is a saved state of llama.cpp"), message("Choose the file of its model.")
_PYTORCH = message("it holds weights of PyTorch"), _GET_GGUF
_PACKED = message("it is packed"), message("Unpack it first.")
_FOREIGN: tuple[tuple[bytes, tuple[Message, Message]], ...] = (
    (b"version https://git-lfs", (message("it is a pointer of Git LFS, and not the file itself"), _AGAIN)),
    *((magic, _OLD) for magic in (b"lmgg", b"fmgg", b"tjgg")),
    (b"algg", (message("it is a LoRA adapter in a format that llama.cpp no longer reads"), _GET_GGUF)),
    *((magic, _STATE) for magic in (b"nsgg", b"qsgg")),
    (b"\x80\x02", _PYTORCH),
    *(
        (magic, _PACKED)
        for magic in (b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")
    ),
    *((magic, _PAGE) for magic in (b"<", b"{", b"\xef\xbb\xbf<")),
    (b"\0" * 8, (message("it begins with zeros, so its download was not finished"), _AGAIN)),
)
"""The first bytes of other files, what each is, and the cure; the first that fits counts."""
_SAFETENSORS = re.compile(rb".{4}\0{4}\{\s*\"", re.DOTALL)
_TEXT = re.compile(rb"[ -~\t\r\n]{12,}")


def recognise_bytes(start: bytes) -> tuple[Message, Message] | None:
    """Return what a file is that is no GGUF, as a clause, and the cure; None if that is unknown.

    `start` are its first bytes, 64 or more of them if it has as many.
    """
    if _SAFETENSORS.match(start):
        return message("it is a safetensors file"), _GET_GGUF
    if start.startswith(b"PK\x03\x04") and b"data.pkl" in start:  # torch.save writes this entry first
        return _PYTORCH
    found = next((kind for magic, kind in _FOREIGN if start.lstrip(b" \r\n").startswith(magic)), None)
    return found or (_PAGE if _TEXT.fullmatch(start[:64]) else None)
