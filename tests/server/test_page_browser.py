"""The page in a browser: what a person sees. `make test-all` installs Chromium."""

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from .conftest import ServerProcess

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
OPTIONS = ("--num-kv-blocks", "64", "--max-model-len", "256", "--max-num-seqs", "4")
# Nothing but the page itself may go out.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


class Browser:
    """A page and everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield Browser(chromium.new_page())
        chromium.close()


def test_a_person_chats_and_sees_the_blocks_that_it_takes(browser: Browser, tiny_model: str) -> None:
    server = ServerProcess(tiny_model, *OPTIONS).wait_until_ready()
    page = browser.page
    page.goto(server.url)
    expect(page.locator("#backend")).to_have_text("cpu, float32")
    expect(page.locator(".free")).to_have_text("64 free")
    browser.say("Hello")
    expect(page.locator(".user")).to_have_text("Hello")
    expect(page.locator(".assistant")).to_have_text(re.compile("."))
    expect(page.locator("#send")).to_have_text("Send", timeout=60_000)
    expect(page.locator("#running")).to_have_text("0")
    expect(page.locator(".cached")).not_to_have_text("0 cached")
    assert browser.complaints == []
    # The first block is cached, the last one, in the second row of 48, is free.
    first, last = page.locator("canvas").evaluate(
        "c => [[1, 1], [15 * 8 + 1, 9]].map(([x, y]) => c.getContext('2d').getImageData(x, y, 1, 1).data.join())"
    )
    assert first != last
    server.stop()


def test_a_person_stops_an_answer_and_its_blocks_are_given_back(browser: Browser, tiny_model: str) -> None:
    server = ServerProcess(tiny_model, *OPTIONS, "--max-model-len", "900").wait_until_ready()
    page = browser.page
    page.goto(server.url)
    browser.say("Hello")
    expect(page.locator("#send")).to_have_text("Stop")
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Send")
    server.wait_until_idle()
    server.stop()


def test_a_person_without_a_key_reads_why_nothing_comes(browser: Browser, tiny_model: str) -> None:
    server = ServerProcess(tiny_model, *OPTIONS, "--api-key", "secret").wait_until_ready()
    page = browser.page
    page.set_extra_http_headers({"Authorization": "Bearer secret"})
    page.goto(server.url)
    page.set_extra_http_headers({})
    browser.say("Hello")
    expect(page.locator(".error")).to_have_text(re.compile("API key is needed"))
    page.fill("#key", "secret")
    page.press("#key", "Tab")
    browser.say("Hello")
    expect(page.locator(".assistant")).to_have_text(re.compile("."))
    server.stop()
