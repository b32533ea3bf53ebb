"""How figures are judged, and that one which cannot be measured does not keep the others."""

import json
from pathlib import Path

import pytest

from bench.figures import Figure, Floor, save, show
from bench.growth import Growth
from bench.page import _BEGIN, _END, with_table
from bench.rig import Place
from bench.run import measure_each


def _figure(name: str, *samples: float, reach: float | None = None) -> Figure:
    return Figure(name=name, samples=samples, reach=reach, floor=Floor(what="a", samples=[0.5]))


def test_the_exponent_of_what_grows_with_the_square_is_two() -> None:
    squares = {size: _figure("", float(size * size)) for size in (8, 64, 256)}
    assert round(Growth(name="x", figures=squares).exponent().p50, 6) == 2.0


def test_only_what_is_above_the_floor_grows_where_that_is_asked() -> None:
    lines = {size: _figure("", size + 0.5) for size in (8, 64, 256)}
    growth = Growth(name="x", figures=lines, above_floor=True)
    assert round(growth.exponent().p50, 6) == 1.0


def test_a_figure_is_saved_with_its_reach_and_its_floor(tmp_path: Path) -> None:
    save([_figure("one", 1.0, 2.0, 3.0, reach=2.5)], {"two": "a reason"}, tmp_path / "bench.json")
    saved = json.loads((tmp_path / "bench.json").read_text())
    assert saved["one"]["n"] == 3
    assert saved["one"]["p50"] == 2.0
    assert saved["one"]["p99"] == 3.0
    assert saved["one"]["reach"] == 2.5
    assert saved["one"]["within"] is True
    assert saved["one"]["floor"] == 0.5
    assert saved["two"] == {"error": "a reason"}


def test_the_table_says_what_is_missed() -> None:
    table = show([_figure("good", 1.0, reach=2.0), _figure("slow", 3.0, reach=2.0)])
    assert [line.split()[-1] for line in table.splitlines()[1:3]] == ["met", "MISSED"]


def test_the_table_of_a_page_is_renewed_and_the_rest_of_it_stays(tmp_path: Path) -> None:
    page = f"before\n{_BEGIN}| old |\n{_END}after\n"
    save([_figure("one", 1.0, 3.25, reach=0.5)], {"two": "a reason"}, tmp_path / "bench.json")
    figures = json.loads((tmp_path / "bench.json").read_text())
    written = with_table(page, figures)
    assert written.splitlines()[4:6] == [
        "| `one` | 1 ms | 3.25 ms | p50 0.5 | 0.5 | missed |",
        "| `two` | not measured | | | | |",
    ]
    assert (written.splitlines()[0], written.splitlines()[-1]) == ("before", "after")
    assert with_table(written, figures) == written
    with pytest.raises(ValueError, match="lacks the lines"):
        with_table("a page", figures)


async def test_a_figure_that_cannot_be_measured_fails_alone(tmp_path: Path) -> None:
    async def fails(_place: Place) -> list[Figure]:
        raise AssertionError("nothing registered")

    async def works(_place: Place) -> list[Figure]:
        return [_figure("good", 1.0)]

    place = Place(state=tmp_path / "state", python=tmp_path)
    measures = [(fails, ("bad", "worse")), (works, ("good",))]
    figures, failures = await measure_each(measures, place, tmp_path / "bench.json")
    assert [each.name for each in figures] == ["good"]
    assert list(json.loads((tmp_path / "bench.json").read_text())) == ["good", "bad", "worse"]
    assert failures == dict.fromkeys(("bad", "worse"), "AssertionError: nothing registered")
