"""Formulas in replies: LaTeX as one line of Unicode text."""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

_LONGEST = 1_000
"""Longer formulas stay as they were written."""
_MOST_NESTED = 12
"""Fractions and roots within each other; deeper ones stay as they were written."""
_LATEX = re.compile(r"[\\^_{]")
_REMOVED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|nolimits)(?![A-Za-z])"
    r"|\\(?:begin|end)\{[a-z*]+\}(?:\{[lcr|]*\})?|(?<!\\)&"
)
_SPACES = re.compile(r"\\(?:[,;:!> ]|q?quad(?![A-Za-z]))|~")
_NAMES = re.compile(
    r"\\(sin|cos|tan|cot|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|lg|exp|max|min|sup|inf|lim|det|dim|ker|gcd|arg|Pr"
    r"|mod|bmod)(?![A-Za-z])(\s*[_^(])?"
)
_COMMANDS = re.compile(
    r"\\(frac|dfrac|tfrac|sqrt|binom|text|textbf|textit|textrm|mathrm|operatorname\*?|mbox)(?![A-Za-z])"
)
_SIMPLE = re.compile(r"[0-9.]*|[^\W\d_]|\\[A-Za-z]+|[^\W\d_]*\([^()]*\)|√\(?[^()]*\)?")
"""Terms without brackets above or below a fraction: a number, a letter, a command, a function with its argument."""
_SYMBOL = re.compile(r"\\([A-Za-z]+)(?: *\{([A-Za-z])\}| ([A-Za-z])(?![A-Za-z]))?")
_SCRIPT = re.compile(r"([_^])(?:\{([^{}]*)\}|(\S))")
_MINUS = re.compile(r"(?<![^\W\d_]{2})-|-(?![^\W\d_]{2})")
"""A hyphen that is not within a word."""
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lamda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega"
).split()
_SYMBOLS = dict(
    word.split("=")
    for word in (
        "lambda=λ Lambda=Λ varepsilon=ε varphi=φ vartheta=ϑ varrho=ϱ varsigma=ς ell=ℓ hbar=ħ Re=ℜ Im=ℑ aleph=ℵ "
        "infty=∞ partial=∂ nabla=∇ emptyset=∅ varnothing=∅ forall=∀ exists=∃ nexists=∄ neg=¬ lnot=¬ angle=∠ "
        "degree=° circ=∘ prime=′ dagger=† top=⊤ bot=⊥ perp=⊥ "
        "times=× div=÷ cdot=⋅ ast=∗ star=⋆ pm=± mp=∓ oplus=⊕ otimes=⊗ odot=⊙ wedge=∧ land=∧ vee=∨ lor=∨ cap=∩ "
        "cup=∪ setminus=∖ bullet=• "
        "le=≤ leq=≤ ge=≥ geq=≥ ne=≠ neq=≠ ll=≪ gg=≫ approx=≈ equiv=≡ sim=∼ simeq=≃ cong=≅ propto=∝ prec=≺ succ=≻ "
        "in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ mid=∣ parallel=∥ vdash=⊢ models=⊨ "
        "to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ uparrow=↑ downarrow=↓ mapsto=↦ Rightarrow=⇒ "
        "implies=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⇔ longrightarrow=⟶ hookrightarrow=↪ "
        "sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigoplus=⨁ "
        "ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ "
        "lvert=| rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ backslash=∖ therefore=∴ because=∵ square=□ checkmark=✓"
    ).split()
)
"""Characters of commands."""
_MARKS = {
    "hat": "\N{COMBINING CIRCUMFLEX ACCENT}",
    "widehat": "\N{COMBINING CIRCUMFLEX ACCENT}",
    "bar": "\N{COMBINING MACRON}",
    "overline": "\N{COMBINING OVERLINE}",
    "tilde": "\N{COMBINING TILDE}",
    "widetilde": "\N{COMBINING TILDE}",
    "vec": "\N{COMBINING RIGHT ARROW ABOVE}",
    "dot": "\N{COMBINING DOT ABOVE}",
    "ddot": "\N{COMBINING DIAERESIS}",
}
"""Marks above a letter."""
_LETTERS = {
    "mathbb": "DOUBLE-STRUCK",
    "mathcal": "SCRIPT",
    "mathfrak": "FRAKTUR",
    "mathbf": "BOLD",
    "boldsymbol": "BOLD",
}
"""Styles of letters by the words of their Unicode names."""
_HIGH = dict(
    zip(
        "0123456789+-=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVW′∗∘βγδθφχ",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂ′*°ᵝᵞᵟᶿᵠᵡ",
        strict=True,
    )
)
_LOW = dict(zip("0123456789+-=()aehijklmnoprstuvxβγρφχ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ", strict=True))
"""Raised and lowered characters."""
_LEFT_OVER = re.compile(r"[{}]")
_KEPT_BRACES = (("\\{", "\ue000"), ("\\}", "\ue001"))
"""Braces that are shown, and private characters that stand for them while the other braces are removed."""
_UP, _DOWN = "\ue002", "\ue003"
"""Private characters for the marks of raised and lowered texts that have no characters of their own."""


@lru_cache(maxsize=256)
def format_formula(latex: str) -> str:
    """Return LaTeX as Unicode text, such as "x² ≤ (a+b)/2". What has no character for it stays as it was written."""
    text = latex.strip()
    if len(text) > _LONGEST or not _LATEX.search(text):
        return text
    text = _REMOVED.sub("", text).replace("\\\\", " ; ").replace("\n", " ")
    text = _NAMES.sub(lambda found: f" {found[1]}{found[2] or ' '}", text)
    text = _replace_commands(_SPACES.sub(" ", text), 0)
    for written, kept in _KEPT_BRACES:
        text = text.replace(written, kept)
    text = _SYMBOL.sub(_write_symbol, text)
    text = _MINUS.sub("\N{MINUS SIGN}", _replace_scripts(text))
    text = _LEFT_OVER.sub("", text)
    for written, kept in _KEPT_BRACES:
        text = text.replace(kept, written[1:])
    return " ".join(text.replace("\\%", "%").replace("\\$", "$").replace("\\_", "_").split())


def _write_symbol(found: re.Match[str]) -> str:
    """Return the character of a command. A letter after it belongs to it only if the command changes letters."""
    name, letter = found[1], found[2] or found[3] or ""
    behind = found[0][1 + len(name) :]
    if name in _LETTERS and letter:
        return _find_letter(_LETTERS[name], letter)
    if name in _MARKS and letter:
        return letter + _MARKS[name]
    greek = "lamda" if name.lower() == "lambda" else name.lower()
    if greek in _GREEK:
        case = "SMALL" if name.islower() else "CAPITAL"
        return unicodedata.lookup(f"GREEK {case} LETTER {greek.upper()}") + behind
    return _SYMBOLS.get(name, f"\\{name}") + behind


def _find_letter(style: str, letter: str) -> str:
    """Return a letter in a style, such as ℝ, or the letter itself if Unicode has none."""
    case = "SMALL" if letter.islower() else "CAPITAL"
    for name in (f"MATHEMATICAL {style} {case} {letter.upper()}", f"{style} {case} {letter.upper()}"):
        try:
            return unicodedata.lookup(name)
        except KeyError:
            continue
    return letter


def _replace_scripts(text: str) -> str:
    """Replace raised and lowered texts, from the innermost ones on."""
    for _ in range(_MOST_NESTED):
        changed = _SCRIPT.sub(_write_script, text)
        if changed == text:
            break
        text = changed
    return text.replace(_UP, "^").replace(_DOWN, "_")


def _write_script(found: re.Match[str]) -> str:
    characters = _HIGH if found[1] == "^" else _LOW
    script = (found[2] if found[2] is not None else found[3]).replace(" ", "")
    if all(each in characters for each in script):
        return "".join(characters[each] for each in script)
    mark = _UP if found[1] == "^" else _DOWN
    return mark + (script if len(script) == 1 or (found[1] == "_" and script.isalpha()) else f"({script})")


def _replace_commands(text: str, depth: int) -> str:
    """Replace fractions, roots, binomials and upright text."""
    done = []
    at = 0
    while found := _COMMANDS.search(text, at):
        done.append(text[at : found.start()])
        writer, count = _WRITERS.get(found[1], (_write_text, 1))
        at, arguments = found.end(), []
        if found[1] == "sqrt" and text[at : at + 1] == "[" and "]" in text[at:]:
            close = text.index("]", at)
            done.append(f"^{{{text[at + 1 : close]}}}")
            at = close + 1
        for _ in range(count):
            argument, at = _take_argument(text, at)
            arguments.append(_replace_commands(argument, depth + 1) if depth < _MOST_NESTED else argument)
        done.append(writer(*arguments))
    return "".join(done) + text[at:]


def _take_argument(text: str, at: int) -> tuple[str, int]:
    """Return the argument of a command that begins at an offset, without its braces, and the offset after it."""
    while at < len(text) and text[at] == " ":
        at += 1
    if text[at : at + 1] != "{":
        return text[at : at + 1], at + 1
    level = 0
    for end in range(at, len(text)):
        level += {"{": 1, "}": -1}.get(text[end], 0)
        if level == 0:
            return text[at + 1 : end], end + 1
    return text[at + 1 :], len(text)


def _write_fraction(above: str, below: str) -> str:
    return f"{_bracket(above)}/{_bracket(below)}"


def _write_root(inside: str) -> str:
    return f"√{_bracket(inside)}"


def _write_binomial(above: str, below: str) -> str:
    return f"C({above}, {below})"


def _write_text(text: str) -> str:
    return text


def _bracket(text: str) -> str:
    """Put brackets around what would be read as several parts on one line."""
    text = text.strip()
    return text if _SIMPLE.fullmatch(text) else f"({text})"


_WRITERS: dict[str, tuple[Callable[..., str], int]] = {
    "frac": (_write_fraction, 2),
    "dfrac": (_write_fraction, 2),
    "tfrac": (_write_fraction, 2),
    "binom": (_write_binomial, 2),
    "sqrt": (_write_root, 1),
}
"""The writers of commands whose arguments are not only text, and the number of their arguments."""
