"""The pages in a real browser, found by role and text as a person finds them; screenshots go to out/ui/."""

import io
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from rich.console import Console

from models.base import connect
from models.settings import Settings
from ops import glance
from ops.services import Services
from tests.ops.board import seeded
from tests.ops.board.serving import Board, serving

playwright = pytest.importorskip("playwright.sync_api", reason="the extra `ui` is not installed")
CHROMIUM = shutil.which("chromium")
SHOTS = Path(__file__).parents[2] / "out/ui"
WIDTHS = {"wide": 1280, "phone": 390}
FAILED = {"length": 90, "timeout": 70, "http_500": 40}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")]


@pytest.fixture(scope="module")
def board(new_database: Callable[[], str], services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    url = new_database()
    seeded.fill(url)
    seeded.failures(url, "B8", FAILED)
    seeded.limits(services.redis_url)
    with serving(url, services.redis_url, tmp_path_factory.mktemp("flower")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, board: Board) -> Iterator[Any]:
    with _page(browser, board) as opened:
        yield opened


class _page:
    """A page of a fresh visitor who has logged in; errors in its console are errors of the test."""

    def __init__(self, browser: Any, board: Board, **more: Any) -> None:
        self.context = browser.new_context(base_url=board.url, timezone_id="UTC", http_credentials={
            "username": "draftmill", "password": board.password}, **{"viewport": {"width": 1280, "height": 800}, **more})
        self.said: list[str] = []

    def __enter__(self) -> Any:
        page = self.context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda m: self.said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        return page

    def __exit__(self, kind: Any, *_: object) -> None:
        self.context.close()
        assert kind or not self.said


def row(page: Any, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=re.compile(rf"^{name}\b")))


def test_two_hundred_failed_long_samples_are_asked_again_in_four_clicks(page: Any, board: Board) -> None:
    clicks = []

    def click(role: str, name: str) -> None:
        clicks.append(name)
        page.get_by_role(role, name=name, exact=True).click()

    page.goto("/dataset/B8")
    click("link", "Requeue…")
    confirm = page.get_by_text("200 samples", exact=True)
    confirm.wait_for()
    page.get_by_text("90 length, 70 timeout, 40 http_500").wait_for()
    page.get_by_label("Run them in lane").select_option("long")
    clicks.append("lane")
    page.wait_for_url(re.compile("lane=long"))
    page.get_by_text("at most $32.77").wait_for()       # 200 x 16,384 tokens at the plan's $10 a million
    page.screenshot(path=SHOTS / "requeue-before.png", full_page=True)
    click("button", "Requeue 200 samples")
    page.get_by_role("status").get_by_text("the samples are queued again").wait_for()
    page.get_by_text("200 waiting").wait_for()
    assert len(clicks) <= 4

    # A worker takes them: most are done, some fail again.
    board.rows("""insert into attempt (sample_id, fence, dataset_id, worker_id, lane, reserved_tokens, reserved_nusd)
        select id, 2, dataset_id, 3, 1, 0, 0 from sample where reason is not null and key like 'late-%%' and state = 0""")
    board.rows("update sample set state = 2, fence = 2 where key like 'late-%%' and reason <> 'http_500'")
    page.reload()
    page.get_by_text("160 done, 40 running").wait_for()
    page.screenshot(path=SHOTS / "requeue-after.png", full_page=True)


def test_what_was_asked_by_mistake_is_taken_back(page: Any) -> None:
    page.goto("/requeue?dataset=B6")
    button = page.get_by_role("button", name=re.compile("^Requeue"))
    n = re.findall(r"\d+", button.inner_text())[0]
    button.click()
    page.get_by_text(f"{n} waiting").wait_for()
    page.get_by_role("button", name=re.compile("^Take back")).first.click()
    page.get_by_role("status").get_by_text(f"{n} samples were taken back").wait_for()


def test_a_choice_is_counted_at_once(page: Any) -> None:
    page.goto("/requeue?dataset=B3")
    page.get_by_label("length").check()
    page.wait_for_url(re.compile("cause=length"))
    n = page.locator("label", has_text="length").locator(".dm-muted").inner_text()
    page.get_by_role("button", name=f"Requeue {n} samples").wait_for()


def test_a_dataset_is_closed_and_opened_and_says_so(page: Any) -> None:
    page.goto("/datasets")
    row(page, "B5").get_by_role("button", name="Close B5").click()
    row(page, "B5").get_by_text("closed: operator").wait_for()
    row(page, "B5").get_by_role("button", name="Open B5").click()
    row(page, "B5").get_by_text("running", exact=True).first.wait_for()


def test_the_page_refreshes_itself(page: Any, board: Board) -> None:
    page.goto("/datasets")
    board.rows("update dataset set state = 1, closed_reason = 'waste' where name = 'B4'")
    row(page, "B4").get_by_text("closed: waste").wait_for()
    board.rows("update dataset set state = 0, closed_reason = null where name = 'B4'")
    row(page, "B4").get_by_text("running", exact=True).first.wait_for()


def test_without_javascript_everything_but_the_refresh_works(browser: Any, board: Board) -> None:
    with _page(browser, board, java_script_enabled=False) as page:
        page.goto("/datasets")
        page.get_by_role("link", name="B3", exact=True).click()
        page.get_by_role("link", name="Requeue… length").click()
        page.get_by_label("Run them in lane").select_option("long")
        page.get_by_role("button", name="Count").click()
        assert "lane=long" in page.url
        page.get_by_role("button", name=re.compile(r"^Requeue \d+ samples$")).wait_for()
        page.get_by_role("link", name="Datasets", exact=True).click()
        row(page, "B6").get_by_role("button", name="Close B6").click()
        row(page, "B6").get_by_text("closed: operator").wait_for()
        row(page, "B6").get_by_role("button", name="Open B6").click()


def test_results_of_a_requeue_appear_by_themselves(page: Any, board: Board) -> None:
    page.goto("/requeue?dataset=B4")
    page.get_by_role("button", name=re.compile("^Requeue")).click()
    page.get_by_text(re.compile(r"^\d+ waiting$")).wait_for()
    page.get_by_label("At most so many tokens").fill("77")
    board.rows("""insert into attempt (sample_id, fence, dataset_id, worker_id, lane, reserved_tokens, reserved_nusd)
        select s.id, 9, s.dataset_id, 3, 1, 0, 0 from requeue r, jsonb_array_elements(r.before) e, sample s
        where s.id = (e ->> 0)::bigint and s.state = 0 and r.what ->> 'dataset' = 'B4' order by s.id limit 5""")
    page.get_by_text(re.compile(r"^5 running, \d+ waiting$")).wait_for()
    assert page.get_by_label("At most so many tokens").input_value() == "77", "what is being typed stays"


def test_the_terminal_shows_the_same(browser: Any, board: Board, services: Services) -> None:
    engine = connect(board.database, size=1)
    looker = glance.Looker(engine, Settings(redis_url=SecretStr(services.redis_url)))
    with ThreadPoolExecutor(1) as apart:        # this thread's loop belongs to the browser
        seen = apart.submit(looker.look).result()
    engine.dispose()
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    console.print(glance.render(seen, brief=True))
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.set_content(console.export_svg(title="draftmill status --watch"))
    page.get_by_text("last failures").wait_for()
    page.screenshot(path=SHOTS / "terminal.png", full_page=True)
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", WIDTHS)
def test_pages_fit_and_are_legible(browser: Any, board: Board, theme: str, size: str) -> None:
    """Nothing sticks out of the page, and words stand out from what is behind them."""
    with _page(browser, board, viewport={"width": WIDTHS[size], "height": 800}, color_scheme=theme) as page:
        for name, path in (("datasets", "/datasets"), ("dataset", "/dataset/B3"), ("requeue", "/requeue?dataset=B3&cause=length"),
                           ("workers", "/workers")):
            page.goto(path)
            page.get_by_role("navigation", name="Primary navigation").wait_for()
            assert page.evaluate("document.documentElement.dataset.bsTheme") == theme
            page.screenshot(path=SHOTS / f"{name}-{theme}-{size}.png", full_page=True)
            if name != "workers":
                assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[size], path
                assert page.evaluate(FAINT) == [], path


# Texts whose contrast with their background is under 3 : 1.
FAINT = """() => {
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const rgba = s => s.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > .5) return c.slice(0, 3); } return [255, 255, 255]; };
  return [...document.querySelectorAll('#board *')].filter(e => e.offsetParent && [...e.childNodes].some(
      n => n.nodeType === 3 && n.textContent.trim())).map(e => {
    const a = light(rgba(getComputedStyle(e).color).slice(0, 3)), b = light(behind(e));
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.trim().slice(0, 40)];
  }).filter(([ratio]) => ratio < 3);
}"""
