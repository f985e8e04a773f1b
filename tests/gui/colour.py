"""Distances between colours, also for colour-blind eyes, and the contrast of text.

CIEDE2000: G. Sharma, W. Wu, E. N. Dalal, "The CIEDE2000 Color-Difference Formula: Implementation Notes, Supplementary
Test Data, and Mathematical Observations", Color Research and Application 30 (2005), equations 2 to 22.
Deficiencies: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for Simulation of Color
Vision Deficiency", IEEE TVCG 15 (2009), the matrices for severity 1.0, applied to linear RGB.
Contrast and linear RGB: Web Content Accessibility Guidelines 2.2 and IEC 61966-2-1 (sRGB, white point D65).
"""

from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

Triple = tuple[float, float, float]
Matrix = tuple[Triple, Triple, Triple]

DEFICIENCIES: dict[str, Matrix] = {
    "none": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
_TO_XYZ: Matrix = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE: Triple = (0.95047, 1.0, 1.08883)


def linear_rgb(colour: str) -> Triple:
    """Return #RRGGBB as linear RGB, 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return _expand_channel(red), _expand_channel(green), _expand_channel(blue)


def _expand_channel(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def times(matrix: Matrix, vector: Triple) -> Triple:
    """Return a matrix times a vector."""
    x, y, z = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return x, y, z


def seen_lab(colour: str, deficiency: str) -> Triple:
    """Return what of a colour is seen, in CIE L*a*b*."""
    red, green, blue = (min(max(part, 0.0), 1.0) for part in times(DEFICIENCIES[deficiency], linear_rgb(colour)))
    x, y, z = (_f(part / white) for part, white in zip(times(_TO_XYZ, (red, green, blue)), _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _f(t: float) -> float:
    return t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours (WCAG 2.2, "contrast ratio")."""
    bright, dark = sorted(times(((0.2126, 0.7152, 0.0722),) * 3, linear_rgb(each))[0] for each in (one, other))[::-1]
    return (bright + 0.05) / (dark + 0.05)


def ciede2000(one: Triple, other: Triple) -> float:
    """Return the distance of two colours in CIE L*a*b*, with all parametric factors 1."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean_c7 = ((hypot(a1, b1) + hypot(a2, b2)) / 2) ** 7
    g = 0.5 * (1 - sqrt(mean_c7 / (mean_c7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = hypot(a1, b1), hypot(a2, b2)
    h1, h2 = degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    grey = c1 * c2 == 0
    turn = 0.0 if grey else (h2 - h1 + 180) % 360 - 180
    if turn == -180:
        turn = 180.0
    delta_h = 2 * sqrt(c1 * c2) * sin(radians(turn) / 2)
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    if grey:
        mean_h = h1 + h2
    elif abs(h1 - h2) <= 180:
        mean_h = (h1 + h2) / 2
    else:
        mean_h = (h1 + h2 + 360) / 2 if h1 + h2 < 360 else (h1 + h2 - 360) / 2
    t = (
        1
        - 0.17 * cos(radians(mean_h - 30))
        + 0.24 * cos(radians(2 * mean_h))
        + 0.32 * cos(radians(3 * mean_h + 6))
        - 0.20 * cos(radians(4 * mean_h - 63))
    )
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / sqrt(20 + (mean_l - 50) ** 2)
    s_c, s_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    r_t = -2 * sqrt(mean_c**7 / (mean_c**7 + 25**7)) * sin(radians(60 * exp(-(((mean_h - 275) / 25) ** 2))))
    light, chroma, hue = (l2 - l1) / s_l, (c2 - c1) / s_c, delta_h / s_h
    return sqrt(light**2 + chroma**2 + hue**2 + r_t * chroma * hue)
