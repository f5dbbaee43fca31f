"""The site in a browser: on a phone and a wide screen, in both themes, and its search."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from selenium.webdriver.common.by import By

from tests.servers.browser import Page
from tests.site.html import Document

_THEMES = ("default", "slate")
# What leaves the page on the right, without what is in a box that scrolls.
_TOO_WIDE = """
const root = document.documentElement
const scrolls = each => /auto|scroll|hidden/.test(getComputedStyle(each).overflowX)
const inBox = each => each && each !== document.body && (scrolls(each) || inBox(each.parentElement))
const wide = [...document.querySelectorAll('article *')].filter(each =>
    each.getBoundingClientRect().right > root.clientWidth + 1 && !inBox(each.parentElement))
const page = root.scrollWidth > root.clientWidth ? ['the page scrolls sideways'] : []
return [...page, ...wide.map(each => 'too wide: ' + each.outerHTML.slice(0, 80))]
"""
# Texts whose contrast with what is behind them is below 4.5:1 (WCAG 2, 1.4.3). Colours are read by drawing them.
_FAINT = """
const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
const pen = canvas.getContext('2d', {willReadFrequently: true})
const known = new Map()
const colour = text => {
    if (!known.has(text)) {
        pen.clearRect(0, 0, 1, 1)
        pen.fillStyle = text
        pen.fillRect(0, 0, 1, 1)
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data
        known.set(text, [r, g, b, a / 255])
    }
    return known.get(text)
}
const over = ([r, g, b, a], ground) => [r, g, b].map((each, at) => each * a + ground[at] * (1 - a))
const light = rgb => rgb.map(each => each / 255)
    .map(each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0)
const style = each => getComputedStyle(each)
const behind = each => each ? over(colour(style(each).backgroundColor), behind(each.parentElement)) : [255, 255, 255]
const opacity = each => each ? style(each).opacity * opacity(each.parentElement) : 1
const contrast = (text, ground) => {
    const [one, two] = [light(text), light(ground)]
    return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05)
}
const found = new Map()
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
while (texts.nextNode()) {
    const each = texts.currentNode.parentElement, text = texts.currentNode.data.trim()
    if (!text || !each.checkVisibility({visibilityProperty: true}) || each.closest('.md-visually-hidden')) continue
    const [r, g, b, a] = colour(style(each).color), shown = a * opacity(each), ground = behind(each)
    const measured = contrast(over([r, g, b, shown], ground), ground)
    const kind = each.tagName + '.' + each.className
    if (shown && measured < 4.5) found.set(kind, `faint ${kind}, ${measured.toFixed(2)}: ${text.slice(0, 40)}`)
}
return [...found.values()]
"""
# Colours fade when the theme changes, which a person sees and a check need not await.
_AT_ONCE = """
document.head.append(Object.assign(document.createElement('style'), {textContent: '* {transition: none !important}'}))
"""
# The field of the search, which is in a tree of its own; what it finds; and what typing into it at once does.
_FIELD = """
const roots = [...document.querySelectorAll('body > div')].map(each => each.shadowRoot)
const root = roots.find(each => each && each.querySelector('input'))
"""
_RESULTS = _FIELD + "return root ? [...root.querySelectorAll('a[href]')].map(each => each.href) : null"
_ASK = (
    _FIELD
    + """
const field = root.querySelector('input')
Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(field, arguments[0])
field.dispatchEvent(new InputEvent('input', {bubbles: true}))
"""
)
_LIGHT = {"name": "prefers-color-scheme", "value": "light"}
#: Questions, in words that a person may type, and the page that has the answer.
_ANSWERS = {
    "is the order global": "questions/",
    "change batch size": "questions/",
    "delete a document": "questions/",
    "how much disk": "questions/",
    "install": "start/install/",
    "chat template": "guides/conversations/",
    "multi-GPU": "guides/multi-gpu/",
    "slurm": "guides/multi-gpu/",
    "jupyter": "guides/jupyter/",
    "notebook": "guides/jupyter/",
    "nightly schedule": "guides/schedules/",
    "coming from megatron": "comparison/megatron/",
    "tokenloom gc": "reference/commands/",
    "cu_seqlens": "reference/python/",
    "EncoderMismatch": "reference/errors/",
}


def resize(page: Page, width: int, height: int = 900) -> None:
    """Give the screen a size in pixels; a narrow one is a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def set_theme(page: Page, theme: str) -> None:
    """Change the theme of the page that is open, at once."""
    page.driver.execute_script(_AT_ONCE)
    page.driver.execute_script("document.body.setAttribute('data-md-color-scheme', arguments[0])", theme)


def _console(page: Page) -> list[str]:
    """Return the errors of the console since the last call, missing files included."""
    return [entry["message"] for entry in page._log("browser") if entry["level"] == "SEVERE"]


def _faults(page: Page) -> list[str]:
    """Return what is wrong with the page that is open, in both themes at both widths."""
    faults = _console(page)
    for width in (390, 1400):
        resize(page, width)
        faults += [f"{width} pixels: {each}" for each in page.driver.execute_script(_TOO_WIDE)]
        for theme in _THEMES:
            set_theme(page, theme)
            faults += [f"{width} pixels, {theme}: {each}" for each in page.driver.execute_script(_FAINT)]
    return faults + [f"a request to {host}" for host in page.hosts() - {"127.0.0.1"}]


def _sample(documents: dict[str, Document]) -> list[str]:
    """Return the pages to open: all with TOKENLOOM_FULL=1, otherwise the home and the longest page of six folders."""
    if os.environ.get("TOKENLOOM_FULL"):
        return list(documents)
    longest: dict[str, str] = {}
    for name in sorted(documents, key=lambda name: documents[name].tags.total()):
        longest |= {name.partition("/")[0]: name}
    longest.pop("index.html")
    return ["index.html", *sorted(longest.values(), key=lambda name: -documents[name].tags.total())[:6]]


def test_pages_open_without_errors_sideways_scrolling_or_faint_text(
    browser: Page, site_url: str, documents: dict[str, Document]
) -> None:
    faults = []
    names = _sample(documents)
    for name in names:
        browser.driver.get(site_url + name.removesuffix("index.html"))
        faults += [f"{name}: {fault}" for fault in _faults(browser)]
    assert len(names) >= 6
    assert faults == []


def open_search(page: Page) -> None:
    """Open the search, until it takes a question."""
    page.press("Search")
    page.wait("field to type in", lambda: page.driver.execute_script(_RESULTS) is not None)


def found(page: Page, question: str) -> list[str]:
    """Ask the search that is open; return the paths of what it finds, best first."""

    def links() -> list[str]:
        return list(page.driver.execute_script(_RESULTS))

    page.driver.execute_script(_ASK, "")
    page.wait("empty list", lambda: not links())
    page.driver.execute_script(_ASK, question)
    return [urlsplit(link).path.removeprefix("/tokenloom/") for link in page.wait(f"result for {question!r}", links)]


_BAD_PAGE = """<!doctype html><title>bad</title><link rel="icon" href="data:,"><script src="missing.js"></script>
<body data-md-color-scheme="default"><article>
<p class="faint" style="color: #888">faint</p>
<p class="half" style="opacity: .5">half</p>
<p style="color: #595959">readable</p>
<div style="overflow: auto"><p style="width: 2000px">in a box that scrolls</p></div>
<div style="width: 1500px">wide</div>
</article>
"""


def test_the_checks_find_what_is_wrong_on_a_page(browser: Page, site_url: str, build: tuple[Path, str]) -> None:
    (build[0] / "bad.html").write_text(_BAD_PAGE)
    browser.driver.get(site_url + "bad.html")
    faults = _faults(browser)
    assert "missing.js" in faults.pop(0)
    for width in (390, 1400):
        kinds = [fault.partition(": ")[2][:18] for fault in faults if fault.startswith(str(width))]
        assert kinds == ["the page scrolls s", "too wide: <div sty", *["faint P.faint, 3.5", "faint P.half, 3.98"] * 2]


def test_search_finds_the_page_that_answers_a_question(browser: Page, site_url: str) -> None:
    resize(browser, 1400)
    browser.driver.get(site_url)
    open_search(browser)
    missed = {}
    for question, page in _ANSWERS.items():
        pages = list(dict.fromkeys(found(browser, question)))
        if page not in pages[:3] or any(other.startswith("project/") for other in pages if "security" not in other):
            missed[question] = pages
    assert missed == {}
    assert _console(browser) == []


def test_the_button_changes_the_theme_and_the_next_page_keeps_it(browser: Page, site_url: str) -> None:
    resize(browser, 1400)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [_LIGHT]})
    browser.driver.get(site_url)
    browser.driver.execute_script("localStorage.clear()")
    browser.driver.get(site_url)
    assert _theme(browser) == "default"
    browser.driver.find_element(By.CSS_SELECTOR, "label[title='Dark colours']").click()
    browser.wait("dark theme", lambda: _theme(browser) == "slate")
    browser.driver.get(site_url + "guides/training/")
    assert _theme(browser) == "slate"
    browser.driver.execute_script("localStorage.clear()")


def _theme(page: Page) -> str | None:
    return page.driver.find_element(By.TAG_NAME, "body").get_attribute("data-md-color-scheme")


def test_a_phone_reaches_every_part_from_the_menu(browser: Page, site_url: str) -> None:
    resize(browser, 390)
    browser.driver.get(site_url)
    browser.driver.find_element(By.CSS_SELECTOR, "label.md-header__button[for=__drawer]").click()
    browser.wait("menu", lambda: {"Guides", "Concepts", "Reference", "Project"} <= set(_menu(browser)))


def _menu(page: Page) -> list[str]:
    return page.driver.find_element(By.CSS_SELECTOR, ".md-sidebar--primary").text.splitlines()
