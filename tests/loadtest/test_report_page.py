"""The page in a real browser without a network: every plot draws, nothing overlaps, on screen and on paper."""

import shutil

import made_study
import pytest

from jetspec_sglang.loadtest.report import write_report
from jetspec_sglang.loadtest.report_figures import sections
from jetspec_sglang.loadtest.report_summary import summarise_study

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on the PATH")

PAPER = 718  # px: A4 less two margins of 1 cm

# Boxes that may not touch: blocks of the page with each other, and the texts of one plot with each other.
OVERLAPS = """
() => {
  const box = node => { const b = node.getBoundingClientRect();
    return {l: b.left, r: b.right, t: b.top, b: b.bottom, name: (node.id || node.textContent).slice(0, 40)}; };
  const visible = b => b.r > b.l && b.b > b.t;
  const found = [];
  const compare = boxes => boxes.forEach((one, i) => boxes.slice(i + 1).forEach(two => {
    const wide = Math.min(one.r, two.r) - Math.max(one.l, two.l);
    const high = Math.min(one.b, two.b) - Math.max(one.t, two.t);
    if (wide > 1 && high > 1) found.push(`${one.name} and ${two.name}`); }));
  const all = (root, selector) => [...root.querySelectorAll(selector)].map(box).filter(visible);
  compare(all(document, "h1, h2, h3, p, li, .plot, table"));
  for (const plot of document.querySelectorAll(".plot")) {
    const texts = all(plot, ".xtick text, .ytick text, .xtitle, .ytitle");
    compare(texts);
    const edge = box(plot);
    for (const text of texts)
      if (text.l < edge.l - 1 || text.r > edge.r + 1 || text.t < edge.t - 1 || text.b > edge.b + 1)
        found.push(`${text.name} leaves ${plot.id}`);
  }
  return found;
}
"""
DRAWN = """
id => {
  const plot = document.getElementById(id);
  const marks = [...plot.querySelectorAll(".scatterlayer .point, .barlayer .point path")];
  return {points: marks.length, size: plot.getBoundingClientRect().width};
}
"""
TOO_WIDE = """
() => [...document.querySelectorAll(".tight, .cells, body")]
  .filter(node => node.scrollWidth > node.parentElement.clientWidth + 1).map(node => node.className || node.tagName)
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    plan = made_study.config(repetitions=2, seconds=20)
    folder = made_study.write_study(tmp_path_factory.mktemp("study"), plan)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, study):
    """Opens the page at a width, when it has drawn; fails on anything it complains about or asks the network for."""
    contexts, complaints = [], []

    def open_page(width: int):
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith("file:") else complaints.append(r.url))
        page.goto((study / "report" / "report.html").as_uri())
        page.evaluate("window.drawn")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("width", [1280, 800])
def test_every_plot_draws_every_point(open_page, study, width):
    page = open_page(width)
    for section in sections(summarise_study(study)):
        for figure in section.figures:
            drawn = page.evaluate(DRAWN, figure.id)
            bars = sum(sum(1 for y in series.y if y) for series in figure.series)
            points = sum(len(series.y) for series in figure.series)
            assert drawn["points"] in ((points,) if figure.kind == "line" else (points, bars)), figure.id
            assert drawn["size"] > 300


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_overlaps_or_is_cut(open_page, width):
    page = open_page(width)
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(TOO_WIDE) == []


def test_nothing_overlaps_on_paper(open_page):
    page = open_page(PAPER)
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(TOO_WIDE) == []


def test_hovering_shows_the_number(open_page):
    page = open_page(1280)
    point = page.locator("#rate-tok-s .scatterlayer .point").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    text = page.locator("#rate-tok-s .hoverlayer .hovertext").first
    text.wait_for()
    assert "tokens/s" in text.text_content()


def test_overlaps_would_be_seen(open_page):
    page = open_page(1280)
    page.evaluate("document.querySelector('h2').style.marginBottom = '-30px'")
    assert page.evaluate(OVERLAPS) != []
