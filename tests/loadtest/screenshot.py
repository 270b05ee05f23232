"""`python tests/loadtest/screenshot.py report.html OUT.png`: the plots of latency and goodput, for the README."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from test_report_page import CHROMIUM

WIDTH = 1280


def main(page_file: Path, picture: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(offline=True, viewport={"width": WIDTH, "height": 900}).new_page()
        page.goto(page_file.resolve().as_uri())
        page.evaluate("window.drawn")
        first, last = (page.locator(name).bounding_box() for name in ("#latency", "#goodput"))
        bottom = last["y"] + last["height"]
        page.screenshot(
            path=picture, full_page=True,
            clip={"x": 0, "y": first["y"], "width": WIDTH, "height": bottom - first["y"] + 16},
        )  # fmt: skip
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
