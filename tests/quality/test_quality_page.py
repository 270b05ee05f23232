"""The page holds all tables and pictures, needs nothing else, and opens in a browser."""

import re
import shutil
from html.parser import HTMLParser

import made_quality
import pytest

from jetspec_sglang.figures import save
from jetspec_sglang.quality_page import page
from jetspec_sglang.quality_plot import figure, panels
from jetspec_sglang.quality_tables import sheets

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag in ("td", "th"):
            self.inside = True
            self.cells.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


@pytest.mark.parametrize("cost", [True, False])
def test_the_page_has_every_cell_and_picture(cost):
    result = made_quality.measured(cost)
    text = page(result)
    expected = [cell for sheet in sheets(result) for row in (sheet.headings, *sheet.rows) for cell in row]
    assert Cells(text).cells == expected
    assert text.count("<svg") == len(panels(result)) == (5 if cost else 4)
    assert "P&amp;Q 1" in text
    assert page(result) == text


def test_nothing_is_asked_of_the_network():
    links = re.findall(r"(?:src|href)=\"(?!#)([^\"]*)\"", page(made_quality.measured()))
    assert links == []


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_one_picture_of_everything(tmp_path, suffix):
    files = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for file in files:
        save(figure(made_quality.measured()), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_size > 10_000


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on the PATH")
@pytest.mark.parametrize("width", [1280, 800])
def test_a_browser_shows_it(tmp_path, width):
    from playwright.sync_api import sync_playwright

    result, file, complaints = made_quality.measured(), tmp_path / "page.html", []
    file.write_text(page(result), encoding="utf-8")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = chromium.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("request", lambda r: None if r.url.startswith("file:") else complaints.append(r.url))
        opened.goto(file.as_uri())
        assert opened.title().startswith("Tree quality of near, far")
        assert opened.locator("table").count() == len(list(sheets(result)))
        sizes = [each.bounding_box() for each in opened.locator("figure > svg").all()]
        assert len(sizes) == 5
        assert all(size and size["width"] > 300 and size["height"] > 150 for size in sizes)
        assert opened.evaluate("document.body.scrollWidth <= window.innerWidth")
        chromium.close()
    assert complaints == []
