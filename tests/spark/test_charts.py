"""Charts can be read: axes have units, names are what they are, and a file is whole or not there."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pyspark_weir import charts
from pyspark_weir.errors import OptionError
from pyspark_weir.histogram import Histogram
from pyspark_weir.series import SUFFIXES, Bar, Line, Spread, checked

MINUTE_MS = 60_000
NOON_MS = 1_700_049_600_000  # 2023-11-15 12:00 UTC
PNG = b"\x89PNG\r\n\x1a\n"
# What mathematics, the library, a page and a terminal would each make something else of.
HOSTILE = ["$\\frac{1", "_pipeline.progress", "<script>x</script>", "a\x1b[31m", "日本語", "&amp;"]


def _texts(path: Path) -> list[str]:
    """What an SVG says, in its order. The file is our own."""
    root = ET.parse(path).getroot()
    return ["".join(one.itertext()).strip() for one in root.iter("{http://www.w3.org/2000/svg}text")]


def _line(name: str, *values: float | None) -> Line:
    return Line(name, [NOON_MS + n * MINUTE_MS for n in range(len(values))], values)


def test_axes_are_named_with_their_units(tmp_path: Path) -> None:
    """Each chart says what both of its axes measure, and its title."""
    path = tmp_path / "a.svg"
    charts.lines(path, [_line("orders", 1, None, 3)], title="Orders", value="price (EUR)")
    assert {"Orders", "time (UTC)", "price (EUR)", "orders", "12:00"} <= set(_texts(path))
    charts.bars(path, [Bar("s/g", {"unread": 5}, "2h 5m")], title="Behind", value="entries")
    assert {"Behind", "entries", "s/g", "2h 5m"} <= set(_texts(path))
    histogram = Histogram.of([3, 70, 2_000])
    spread = Spread("s", histogram.bars(), {"p50": 70.0})
    charts.spreads(path, [spread], title="Delay", value="delay")
    told = _texts(path)
    assert {"Delay", "delay (logarithmic above 1 ms)", "entries (%)", "at most so long (%)"} <= set(told)
    assert {"p50 70 ms", "1 ms", "1 s"} <= set(told)


def test_a_name_is_no_markup_whatever_it_looks_like(tmp_path: Path) -> None:
    """It stands in legend, title and axis as it is; what cannot be printed is spelled."""
    expected = [name.replace("\x1b", "\\u001b") for name in HOSTILE]
    for suffix in SUFFIXES:
        charts.lines(
            tmp_path / f"a{suffix}",
            [_line(name, 1, 2) for name in HOSTILE],
            title=HOSTILE[2],
            value=HOSTILE[0],
        )
        assert (tmp_path / f"a{suffix}").stat().st_size > 1_000
    assert "<script>" not in (tmp_path / "a.html").read_text()
    told = _texts(tmp_path / "a.svg")
    assert set(expected) <= set(told)
    assert (told.count(HOSTILE[0]), told.count(HOSTILE[2])) == (2, 2), "axis and title too"
    charts.bars(
        tmp_path / "b.svg", [Bar(name, {name: 1, "x": 2}, name) for name in HOSTILE], title="t", value="v"
    )
    assert [_texts(tmp_path / "b.svg").count(name) for name in expected] == [3] * len(HOSTILE)
    found = [Spread(name, [(0, 0, 1)], {name: 0}) for name in HOSTILE]
    charts.spreads(tmp_path / "c.svg", found, title="t", value="v")
    assert set(expected) <= set(_texts(tmp_path / "c.svg"))
    charts.spreads(tmp_path / "c.svg", [Spread("s", [(0, 0, 1)], {HOSTILE[0]: 0})], title="t", value="v")
    assert f"{HOSTILE[0]} 0 ms" in _texts(tmp_path / "c.svg")


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    """So that the chart and not its legend fills the picture."""
    charts.lines(tmp_path / "a.svg", [_line("x" * 500, 1)], title="t", value="v")
    longest = max(_texts(tmp_path / "a.svg"), key=len)
    assert longest.endswith("…")
    assert len(longest) < 60


def test_the_largest_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    """A chart of fifty lines is none."""
    found = [_line(f"s{n}", n, n) for n in range(50)]
    charts.lines(tmp_path / "a.svg", found, title="Many", value="v")
    told = _texts(tmp_path / "a.svg")
    assert f"Many (the {charts.lines_max} largest of 50)" in told
    assert [one for one in told if one.startswith("s")] == [f"s{n}" for n in range(49, 41, -1)]
    some = [Bar(f"g{n}", {"unread": n}) for n in range(50)]
    charts.bars(tmp_path / "b.svg", some, title="Many", value="v")
    assert [one for one in _texts(tmp_path / "b.svg") if one.startswith("g")] == [
        f"g{n}" for n in range(49, 49 - charts.bars_max, -1)
    ]


def test_nothing_is_said_to_be_nothing(tmp_path: Path) -> None:
    """An empty chart does not look like a broken one."""
    path = tmp_path / "a.svg"
    for draw in (charts.lines, charts.bars, charts.spreads):
        draw(path, [], title="Empty", value="v")
        assert "nothing to show" in _texts(path)
    charts.spreads(path, [Spread("s", [])], title="No values", value="v")
    charts.lines(path, [_line("s", None)], title="No values", value="v")
    charts.bars(path, [Bar("s", {})], title="No values", value="v")


def test_the_same_numbers_are_the_same_file(tmp_path: Path) -> None:
    """Charts can be compared and kept with what they show."""
    for name in ("a.svg", "b.svg"):
        charts.lines(tmp_path / name, [_line("s", 1, 2)], title="t", value="v")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_name_of_the_file_says_which_kind(tmp_path: Path) -> None:
    """PNG, SVG, or a page that a browser opens, without anything from elsewhere."""
    for suffix in SUFFIXES:
        charts.bars(tmp_path / f"a{suffix}", [Bar("s", {"x": 1})], title="t", value="v")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 1
    assert "src=" not in page
    assert list(tmp_path.glob(".*")) == [], "what was written first is not left behind"


@pytest.mark.parametrize("name", ["a.pdf", "a", "png", "a.png.txt"])
def test_another_kind_is_refused_before_anything_is_counted(tmp_path: Path, name: str) -> None:
    """By name, with the kinds there are."""
    with pytest.raises(OptionError, match=r"\.png, \.svg, \.html"):
        checked(tmp_path / name)


def test_a_chart_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    """A job that goes on draws it again and again."""
    path = tmp_path / "a.svg"
    charts.lines(path, [_line("old", 1)], title="t", value="v")
    charts.lines(path, [_line("new", 1)], title="t", value="v")
    assert "new" in _texts(path)
    assert "old" not in _texts(path)
