"""The page of a run in a real browser: it shows what it should, asks the network for nothing, and fits the screen.

With ``SLURMTRAIN_SHOTS=FOLDER`` the pictures stay there, to be looked at.
"""

# ruff: noqa: E501 - long lines of logs, markup and scripts are easier to read whole

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browser import Browser
from page_kinds import KINDS, make

from slurmtrain.ops.explain import explain_run
from slurmtrain.ops.page import write_page

WANTED = {
    "failed": ("Failed", "Rank 3 ran out of GPU memory", "torch.OutOfMemoryError", "slurmtrain restart", "trained and lost", "is full", "Xid 31"),
    "finished": ("Completed", "The run has finished", "trained and kept"),
    "waiting": ("Inqueue", "submitted as job 1"),
    "hostile": ("Failed", "cuda_oom", "<script>"),
    "huge": ("gpu257", "rank 2049", "failed first"),
    "hung": ("Held", "1 stuck", "1 had no process any more", "waited in the kernel (storage or a device), at step 41"),
    "long": ("All 1000 attempts", "333", "native_crash"),
}  # fmt: skip
WIDTHS = (1280, 380)
_VISIBLE = "document.body.innerText"
_TOO_WIDE = "[...document.querySelectorAll('body *')].filter(e => !e.closest('svg, .scroll, .off') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className).slice(0, 5)"  # fmt: skip
# WCAG's contrast of every text with the first opaque background behind it.
_PALE = """(() => {
  const parse = c => (c.match(/[0-9.]+/g) || []).map(Number), lum = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > .99) return c; } return parse(getComputedStyle(document.documentElement).backgroundColor); };
  const found = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) { const e = walk.currentNode.parentElement; if (!walk.currentNode.data.trim() || !e.offsetParent) continue;
    const a = lum(parse(getComputedStyle(e).color)), b = lum(behind(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.add(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2)); }
  return [...found]; })()"""


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind."""
    found = {}
    for kind in KINDS:
        told = make(kind, tmp_path_factory.mktemp(kind))
        now = told.at + 60
        found[kind] = write_page(explain_run(told.run.dir, None, now), None, (), now)
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_alone_and_fits(
    browser: Browser, pages: dict[str, Path], kind: str, width: int, dark: bool
) -> None:
    browser.open(pages[kind], width=width, dark=dark)
    text = browser.evaluate(_VISIBLE)
    for wanted in WANTED[kind]:
        assert wanted in text, (wanted, text[:2000])
    assert browser.complaints() == []
    assert browser.requests() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(_TOO_WIDE) == []
    assert browser.evaluate(_PALE) == []
    background = browser.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (background == "rgb(15, 20, 25)") is dark
    if folder := os.environ.get("SLURMTRAIN_SHOTS"):
        browser.screenshot(Path(folder) / f"{kind}-{width}{'-dark' if dark else ''}.png")


def test_hostile_texts_run_nothing_and_make_no_elements(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"], width=1280)
    assert browser.evaluate("document.title") == "hostile: Failed"
    assert browser.evaluate(
        "[document.scripts.length, document.images.length, document.querySelectorAll('[onerror]').length]"
    ) == [1, 0, 0]
    assert not browser.evaluate(
        "/[\\u202a-\\u202e\\u2066-\\u2069\\u0000-\\u0008\\u001b]/.test(document.documentElement.outerHTML)"
    )


def test_scripts_that_are_not_ours_would_be_refused(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    """The policy holds where a template of a site forgets to escape."""
    page = tmp_path / "page.html"
    text = pages["finished"].read_text("utf-8")
    injected = "<script>document.title='owned'</script><img src='https://example.invalid/x.png'>"
    page.write_text(text.replace("</main>", f"{injected}</main>"), encoding="utf-8")
    browser.open(page, width=1280)
    assert browser.evaluate("document.title") == "resnet50: Completed"
    assert len(browser.complaints()) >= 2


def test_everything_is_there_without_scripts(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failed"], width=1280, scripts=False)
    shown = browser.call("Accessibility.getFullAXTree")["nodes"]
    names = " ".join(str(node.get("name", {}).get("value", "")) for node in shown)
    for wanted in (*WANTED["failed"], "Timeline", "restart in place (1 of 3)"):
        assert wanted in names, wanted
    assert "Show lines with" not in names


def test_the_filter_shows_the_lines_that_fit(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failed"], width=1280)
    count = "[...document.querySelectorAll('#story tr')].filter(r => r.offsetParent).length"
    everything = browser.evaluate(count)
    browser.evaluate(
        "(b => { b.value = 'REQUEUE'; b.dispatchEvent(new Event('input')); })(document.getElementById('filter'))"
    )
    assert 0 < browser.evaluate(count) < everything
    assert (
        browser.evaluate("document.getElementById('filtered').textContent")
        == f"{browser.evaluate(count)} of {everything}"
    )


def test_it_prints(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failed"], width=1280)
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.evaluate("getComputedStyle(document.querySelector('.log')).maxHeight") == "none"
    assert len(browser.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]) > 10_000
