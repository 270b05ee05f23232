"""The picture of `jetspec eval`: which points become which line, and what stands beside them."""

from dataclasses import asdict
from math import inf

import pytest

from jetspec_sglang import paper
from jetspec_sglang.compare import CompareError
from jetspec_sglang.eval_grid import PLAIN, grid
from jetspec_sglang.eval_plot import apart, by_alpha, by_budget, figure, load_figure
from jetspec_sglang.figures import drawable, save

RUN = {
    "machine": {"cores": 2, "processor": "some processor"},
    "target": "a-model",
    "heads": {"d": "a-head"},
    "dtype": "float32",
    "temperature": 0,
    "prompts": 3,
}


def rows(*scorings: str, expansions=("chain", "eager", "optimal"), budgets=(16, 4)) -> list[dict]:
    configurations = [PLAIN, *grid("d", 8, budgets, expansions, scorings)]
    return [
        {**asdict(c), "domain": domain, "tau": 1 + c.budget / 10, "speedup": 1.5, "tok_s": 50.0}
        for c in configurations
        for domain in ("code", "all")
    ]


def test_lines_over_budgets_leave_the_entropy_in_a_key_out():
    total = [
        r for r in rows("accum_logp", "entropy", "hybrid:alpha=2", "top2gap")[::2] if r["expansion"] != "none"
    ]
    lines = by_budget(total, "tau")
    assert lines["d", "chain", "", ""] == [(4, 1.4), (8, 1.8)]
    assert lines["d", "optimal", "", ""] == lines["d", "eager", "top2gap", ""] == [(4, 1.4), (16, 2.6)]
    assert {name[2] for name in lines} == {"", "top2gap"}


def test_lines_over_alpha_go_from_accum_logp_to_entropy():
    lines = by_alpha(rows("entropy", "hybrid:alpha=2", "accum_logp", "top2gap", budgets=(16,))[::2], "tau")
    assert set(lines) == {("d", "eager", "16 nodes", ""), ("d", "optimal", "16 nodes", "")}
    assert [a for a, _ in lines["d", "eager", "16 nodes", ""]] == [0, 2, inf]
    assert by_alpha(rows("accum_logp")[::2], "tau") == {}


def panels(drawn) -> list:
    return [axes for part in drawn.subfigs for axes in part.axes]


def test_our_panels_stand_above_the_papers():
    drawn = figure(RUN, rows("accum_logp", "entropy", "hybrid:alpha=0.5"))
    ours, papers = drawn.subfigs
    assert "a-model" in ours.get_suptitle()
    assert "some processor" in ours.get_suptitle()
    assert "JetSpec paper" in papers.get_suptitle()
    assert len(ours.axes) == len(papers.axes) == 4
    assert all("Qwen3-8B" in axes.get_title() for axes in papers.axes)
    assert all("H100" in axes.get_title() for axes in papers.axes[:2])
    names = [text.get_text() for text in ours.axes[0].get_legend().get_texts()]
    assert names == ["chain", "eager", "optimal"]
    ticks = [text.get_text() for text in ours.axes[2].get_xticklabels()]
    assert ticks == ["0\naccum_logp", "0.5", "1", "8", "∞\nentropy"]


def test_without_entropy_there_is_nothing_over_alpha():
    assert len(panels(figure(RUN, rows("accum_logp")))) == 4


def test_a_temperature_that_the_paper_has_not():
    drawn = figure({**RUN, "temperature": 0.7}, rows("accum_logp"))
    assert "temperature 0.7" in drawn.subfigs[1].axes[0].texts[0].get_text()
    assert paper.means(0.7) is None
    assert paper.means(1)[64] != paper.means(0)[64]


def test_the_papers_numbers():
    assert set(paper.JETSPEC) == {0, 1}
    for table in paper.JETSPEC.values():
        assert all(len(cells) == len(paper.BENCHMARKS) for cells in table.values())
    best = dict(zip(paper.BENCHMARKS, paper.JETSPEC[0][256], strict=True))
    assert best["MATH-500"] == (9.64, 10.76)
    assert best["MT-Bench"] == (4.58, 5.94)
    assert paper.means(0)[64][0] == pytest.approx((5.98 + 6.76 + 6.47 + 5.53 + 5.34 + 5.95 + 3.97) / 7)


def test_labels_keep_their_distance():
    assert apart([5, 1, 1.1, 1.2], 1) == [5, 1, 2, 3]
    assert apart([], 1) == []


def test_load_has_a_line_a_method():
    served = [
        {"method": method, "concurrency": n, "tok_s": 10.0 * n, "speedup": 1.0}
        for n in (1, 4)
        for method in ("plain", "budget 8", "adaptive")
    ]
    throughput, speedup = load_figure(RUN, served).axes
    assert [line.get_label() for line in throughput.lines] == ["plain", "budget 8", "adaptive"]
    assert list(throughput.lines[0].get_ydata()) == [10, 40]
    assert len(speedup.lines) == 3


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        save(figure(RUN, rows("accum_logp")), tmp_path / name)
    for suffix in ("svg", "png"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_what_stands_against_a_picture(tmp_path, monkeypatch):
    drawable(None)
    drawable(tmp_path / "a.SVG")
    with pytest.raises(CompareError, match="no picture"):
        drawable(tmp_path / "a.pdf")
    with pytest.raises(CompareError, match="no folder"):
        drawable(tmp_path / "b" / "a.svg")
    monkeypatch.setattr("jetspec_sglang.figures.find_spec", lambda name: None)
    with pytest.raises(CompareError, match=r"pip install 'jetspec-sglang\[plot\]'"):
        drawable(tmp_path / "a.svg")
