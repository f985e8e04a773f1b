"""The theme's colours: contrast of text, and differences also for colour-blind users."""

from itertools import combinations
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from launcher.gui import theme
from launcher.gui.theme import DARK, LIGHT, Theme
from tests.gui.colour import DEFICIENCIES, ciede2000, contrast, linear_rgb, seen_lab, times

# Of table 1 in Sharma, Wu and Dalal (see colour.py): L, a, b of two colours, and their distance.
PUBLISHED = [
    (50.0000, 2.6772, -79.7751, 50.0000, 0.0000, -82.7485, 2.0425),
    (50.0000, 3.1571, -77.2803, 50.0000, 0.0000, -82.7485, 2.8615),
    (50.0000, 2.8361, -74.0200, 50.0000, 0.0000, -82.7485, 3.4412),
    (50.0000, -1.3802, -84.2814, 50.0000, 0.0000, -82.7485, 1.0000),
    (50.0000, -1.1848, -84.8006, 50.0000, 0.0000, -82.7485, 1.0000),
    (50.0000, -0.9009, -85.5211, 50.0000, 0.0000, -82.7485, 1.0000),
    (50.0000, 0.0000, 0.0000, 50.0000, -1.0000, 2.0000, 2.3669),
    (50.0000, -1.0000, 2.0000, 50.0000, 0.0000, 0.0000, 2.3669),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0009, 7.1792),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0010, 7.1792),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0011, 7.2195),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0012, 7.2195),
    (50.0000, -0.0010, 2.4900, 50.0000, 0.0009, -2.4900, 4.8045),
    (50.0000, -0.0010, 2.4900, 50.0000, 0.0010, -2.4900, 4.8045),
    (50.0000, -0.0010, 2.4900, 50.0000, 0.0011, -2.4900, 4.7461),
    (50.0000, 2.5000, 0.0000, 50.0000, 0.0000, -2.5000, 4.3065),
    (50.0000, 2.5000, 0.0000, 73.0000, 25.0000, -18.0000, 27.1492),
    (50.0000, 2.5000, 0.0000, 61.0000, -5.0000, 29.0000, 22.8977),
    (50.0000, 2.5000, 0.0000, 56.0000, -27.0000, -3.0000, 31.9030),
    (50.0000, 2.5000, 0.0000, 58.0000, 24.0000, 15.0000, 19.4535),
    (60.2574, -34.0099, 36.2677, 60.4626, -34.1751, 39.4387, 1.2644),
    (63.0109, -31.0961, -5.8663, 62.8187, -29.7946, -4.0864, 1.2630),
    (22.7233, 20.0904, -46.6940, 23.0331, 14.9730, -42.5619, 2.0373),
    (36.4612, 47.8580, 18.3852, 36.2715, 50.5065, 21.2231, 1.4146),
]


@pytest.mark.parametrize(("name", "usual"), [("light", LIGHT), ("dark", DARK)])
def test_high_contrast_has_no_faint_text_or_edges(
    usual_theme: None, qapp: QApplication, name: str, usual: Theme
) -> None:
    theme.choose_theme(name)
    theme.set_contrast(True)
    try:
        sharp = theme.current()
        for surface in SURFACES:
            for role in ("text", "secondary", "control", "limit"):
                assert contrast(getattr(sharp, role), getattr(sharp, surface)) >= 7, role
            assert contrast(sharp.border, getattr(sharp, surface)) >= 3
        theme.apply_theme(qapp, sharp)
        assert f"{name}.svg" in qapp.styleSheet()
    finally:
        theme.set_contrast(False)
    assert theme.current() is usual


SURFACES = ("window", "card", "raised")
SERIES = ("rate", "acceptance", "temperature", "power", "others")
both = pytest.mark.parametrize("shades", [LIGHT, DARK], ids=["light", "dark"])


@pytest.mark.parametrize("row", PUBLISHED)
def test_the_colour_difference_matches_published_values(row: tuple[float, ...]) -> None:
    one, other, distance = row[:3], row[3:6], row[6]
    assert ciede2000(one, other) == pytest.approx(distance, abs=5e-5)  # type: ignore[arg-type]
    assert ciede2000(other, one) == pytest.approx(distance, abs=5e-5)  # type: ignore[arg-type]


def test_contrast_and_lab_match_published_values() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)  # WCAG's own example of a near miss
    assert seen_lab("#FF0000", "none") == pytest.approx((53.24, 80.09, 67.20), abs=0.02)
    assert seen_lab("#0000FF", "none") == pytest.approx((32.30, 79.19, -107.86), abs=0.02)


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_grey_stays_grey_for_colour_blind_eyes(deficiency: str) -> None:
    assert times(DEFICIENCIES[deficiency], linear_rgb("#808080")) == pytest.approx(linear_rgb("#808080"), abs=1e-5)


@both
def test_text_is_readable_on_every_surface(shades: Theme) -> None:
    for surface in SURFACES:
        for role in ("text", "secondary"):
            assert contrast(getattr(shades, role), getattr(shades, surface)) >= 4.5, (role, surface)
    for role in ("text", "secondary", "code_keyword", "code_name", "code_string", "code_number"):
        # Code stands directly on the window's colour.
        assert contrast(getattr(shades, role), shades.window) >= 4.5, role
    assert contrast(shades.on_accent, shades.accent) >= 4.5
    for tint in shades.drafted:
        assert contrast(shades.text, tint) >= 4.5
    for fill, ink in zip(shades.memory, shades.on_memory, strict=True):
        assert contrast(ink, fill) >= 4.5


@both
def test_lines_and_glyphs_stand_out_on_every_surface(shades: Theme) -> None:
    for surface in SURFACES:
        for role in (*SERIES, "ours", "clock", "limit", "accent", "control", "good", "attention", "bad", "information"):
            assert contrast(getattr(shades, role), getattr(shades, surface)) >= 3, (role, surface)


@both
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_series_are_distinguishable_for_colour_blind_eyes(shades: Theme, deficiency: str) -> None:
    for one, other in combinations(SERIES, 2):
        distance = ciede2000(seen_lab(getattr(shades, one), deficiency), seen_lab(getattr(shades, other), deficiency))
        assert distance >= 15, (one, other, distance)


def test_lengths_and_font_sizes_follow_the_scale_within_limits(qapp: object) -> None:
    try:
        for percent, length in ((80, 26), (100, 32), (150, 48), (200, 64), (900, 64), (10, 26)):
            theme.set_scale(percent)
            assert theme.px(32) == length
            assert theme.font(theme.BODY_PX).pixelSize() == round(13 * theme.text_scale())
    finally:
        theme.set_scale(100)


def test_colours_are_defined_in_one_file() -> None:
    import re

    folder = Path(theme.__file__).parent
    literal = re.compile(r"[\"']#[0-9A-Fa-f]{6}\b")
    others = [
        path.name for path in folder.rglob("*.py") if path.name != "theme.py" and literal.search(path.read_text())
    ]
    assert others == []
