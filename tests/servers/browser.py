"""A headless Chromium on Prefect's UI, driven by what a user sees: labels, texts, roles."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    InvalidElementStateException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

T = TypeVar("T")
# in one call, because asking each element for its text would take seconds in a large form
_FIND_BY_TEXT = """
return [...(arguments[0] || document).querySelectorAll(arguments[1])]
    .find(each => each.innerText.trim() === arguments[2] && each.getClientRects().length) || null
"""
_WIDTH, _HEIGHT = 1280, 900  # of the window, in pixels
_PRESSES = 10
FOREIGN_NAME = "evil.test"  # points to this machine, as a name of any site can
WAIT_SECONDS = 300  # guards against a hang; pages are slow while other tests run


class Page:
    """A page of the UI. Every action waits until it is possible."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url
        self._earlier: set[str] = set()  # runs before the last form was submitted

    def open(self, path: str) -> None:
        """Load a page."""
        self.driver.get(self.url + path)

    def wait(self, what: str, condition: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
        """Return the value of `condition` as soon as it is truthy."""
        passing = (
            ElementClickInterceptedException,
            ElementNotInteractableException,
            InvalidElementStateException,
            StaleElementReferenceException,
        )
        waiting = WebDriverWait(self.driver, seconds, 0.4, ignored_exceptions=passing)
        try:
            found: T = waiting.until(lambda _: condition() or False)
        except TimeoutException as error:
            raise TimeoutException(f"no {what} on {self.driver.current_url}") from error
        return found

    def text(self) -> str:
        """Return all text on the page."""
        text: str = self.driver.execute_script("return document.body.innerText")  # `text` of an element takes longer
        return text

    def await_text(self, text: str) -> None:
        """Wait until a text is on the page."""
        self.wait(repr(text), lambda: text in self.text())

    def await_line(self, line: str) -> None:
        """Wait until a text, such as the state of a run, is on a line of its own."""
        self.wait(f"line {line!r}", lambda: line in self.text().splitlines())

    def press(self, text: str, role: str = "button", scope: WebElement | None = None) -> None:
        """Click the first button (or tab, link, menu item) of that text, once nothing covers it."""
        tag = {"button": "button", "link": "a"}.get(role, f"[role={role}]")

        def click() -> bool:
            element = self.driver.execute_script(_FIND_BY_TEXT, scope, tag, text)
            if element is not None:
                element.click()
            return element is not None

        self.wait(f"{role} {text!r}", click)

    def follow(self, part: str, text: str = "") -> None:
        """Click the first link to an address with that part, and with that line if any, until its page is there."""
        links = (By.CSS_SELECTOR, f"a[href*='{part}']")

        def click() -> bool:
            if part not in self.driver.current_url:
                for link in self.driver.find_elements(*links):
                    if not text or text in link.text.splitlines():
                        link.click()
                        break
            return part in self.driver.current_url

        self.wait(f"link {text!r} to {part}", click)

    def field(self, title: str, scope: WebElement | None = None) -> WebElement:
        """Return the outermost field with that label: label, description, input and error."""
        label = f".//label[normalize-space()='{title}' or normalize-space()='{title} (Optional)']"
        box = label + "/ancestor::div[following-sibling::fieldset][1]/.."

        def find() -> WebElement | None:
            found = (scope or self.driver).find_elements(By.XPATH, box)
            return min(found, key=lambda box: len(box.find_elements(By.XPATH, "ancestor::fieldset")), default=None)

        return self.wait(f"field {title!r}", find)

    def fill(self, title: str, value: str, scope: WebElement | None = None) -> None:
        """Replace the value of a field."""
        self._put(value, lambda: self.field(title, scope).find_element(By.CSS_SELECTOR, "textarea, input"))

    def _put(self, value: str, find: Callable[[], WebElement]) -> None:
        def put() -> bool:
            element = find()
            element.send_keys(Keys.CONTROL, "a")
            # In one event, as from the clipboard: a large form is drawn again after each.
            self.driver.execute_cdp_cmd("Input.insertText", {"text": value})
            return element.get_attribute("value") == value

        self.wait(f"input that takes {value!r}", put)

    def type(self, name: str, value: str) -> None:
        """Replace the value of the input of that name."""
        self._put(value, lambda: self.driver.find_element(By.NAME, name))

    def choose(self, value: str, field: WebElement) -> None:
        """Choose a value from the list of a field."""
        button = field.find_element(By.CSS_SELECTOR, "[aria-haspopup=listbox]")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        self.press(value, "option")

    def select(self, shown: str, value: str, scope: WebElement) -> None:
        """Choose a value from the list on the button that shows another one, and wait until the list is gone."""
        self.press(shown, scope=scope)
        self.press(value, "option")
        self.wait("closed list", lambda: not self.driver.find_elements(By.CSS_SELECTOR, "[role=option]"))

    def dialog(self) -> WebElement:
        """Return the dialog that is open."""
        return self.wait("dialog", lambda: self.driver.find_element(By.CSS_SELECTOR, "[role=dialog]"))

    def toggle(self, label: str) -> None:
        """Press the switch of that label until it has changed."""
        switch = (By.CSS_SELECTOR, f"[aria-label='{label}']")

        def state() -> str | None:
            return self.driver.find_element(*switch).get_attribute("aria-checked")

        def press() -> bool:
            if state() == before:
                self.driver.find_element(*switch).click()
            return True

        before = self.wait(f"switch {label!r}", state)
        self._repeat(
            lambda: self.wait(f"switch {label!r} that can be pressed", press),
            f"change of {label!r}",
            lambda: state() != before,
        )

    def press_menu(self, row: str, item: str) -> None:
        """Choose an item from the menu of the row, such as one schedule of several, with that text."""
        menu = "button[normalize-space()='Open menu']"
        path = f"//*[normalize-space(text())='{row}']/ancestor::*[.//{menu}][1]//{menu}"

        def is_open() -> bool:
            return bool(self.driver.find_elements(By.CSS_SELECTOR, "[role=menuitem]"))

        def click() -> bool:
            if not is_open():
                self.driver.find_element(By.XPATH, path).click()
            return True

        self._repeat(lambda: self.wait(f"menu of {row!r}", click), f"open menu of {row!r}", is_open)
        self.press(item, "menuitem")

    def submit(self) -> str:
        """Press Submit until the form responds; return its message.

        The form of a run that was started gives way to the page of its deployment, whose note of it soon vanishes.
        """
        self._earlier = self._started_runs()
        answers = ("scheduled to start", "Error creating flow run", "Error validating")
        form = self.driver.current_url
        self.wait("end of earlier answers", lambda: not any(text in self.text() for text in answers))

        def answer() -> str | None:
            if self.driver.current_url != form:
                return answers[0]
            return next((text for text in answers if text in self.text()), None)

        return self._repeat(lambda: self.press("Submit"), "answer to Submit", answer)

    def _repeat(self, press: Callable[[], object], what: str, condition: Callable[[], T | None]) -> T:
        """Press until the page shows what it should: while it is being drawn, a press may have no effect."""
        for _ in range(_PRESSES):
            press()
            with suppress(TimeoutException):
                return self.wait(what, condition, WAIT_SECONDS / _PRESSES)
        raise AssertionError(f"no {what} after {_PRESSES} presses; errors {self.errors()}; the page:\n{self.text()}")

    def view_run(self) -> None:
        """Open the run that the last `submit` started; a slow page of its deployment may still link an earlier one."""
        (started,) = self.wait("new run", lambda: self._started_runs() - self._earlier)
        self.open(f"/v2/runs/flow-run/{started}")

    def _started_runs(self) -> set[str]:
        """Return the ids of the newest flow runs that no schedule has made."""
        newest = {"sort": "EXPECTED_START_TIME_DESC", "limit": 200}
        runs = httpx.post(f"{self.url}/api/flow_runs/filter", json=newest, trust_env=False, timeout=60).json()
        return {run["id"] for run in runs if not run["auto_scheduled"]}

    def tabs(self, field: WebElement) -> list[str]:
        """Return the names of the first row of tabs in a field."""
        row = field.find_element(By.CSS_SELECTOR, "[role=tablist]")
        return [tab.text for tab in row.find_elements(By.CSS_SELECTOR, "[role=tab]")]

    def screenshot(self, name: str, height: int = 900) -> None:
        """Save a picture in the folder TOKENLOOM_SCREENSHOTS, if that is set.

        Args:
            name: the file's name, without its suffix.
            height: the window's height, in pixels.
        """
        if folder := os.environ.get("TOKENLOOM_SCREENSHOTS"):
            self.driver.set_window_size(_WIDTH, height)
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))
            self.driver.set_window_size(_WIDTH, _HEIGHT)

    def _log(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]

    def errors(self) -> list[str]:
        """Return script errors in the browser's console since the last call, except for requests that we block."""
        entries = [
            entry for entry in self._log("browser") if entry["level"] == "SEVERE" and entry["source"] != "network"
        ]
        return [entry["message"] for entry in entries if "Content Security Policy" not in entry["message"]]

    def hosts(self) -> set[str]:
        """Return the hosts that the browser sent requests to since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        sent, blocked = {}, set()
        for message in messages:
            values = message["params"]
            if message["method"] == "Network.requestWillBeSent":
                sent[values["requestId"]] = urlsplit(values["request"]["url"]).hostname
            elif message["method"] == "Network.loadingFailed" and values.get("blockedReason") == "csp":
                blocked.add(values["requestId"])
        return {host for request, host in sent.items() if host and request not in blocked}


@contextmanager
def chromium(url: str) -> Iterator[Page]:
    """Run a browser that can reach only this machine; skip if none is installed."""
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not browser:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    arguments = [
        "headless=new",
        "disable-gpu",
        "disable-software-rasterizer",
        "force-prefers-reduced-motion",
        "no-proxy-server",
        f"window-size={_WIDTH},{_HEIGHT}",
        f"host-resolver-rules=MAP {FOREIGN_NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]
    for argument in [*arguments, *(["no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(f"--{argument}")
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Page(chrome, url)
    finally:
        chrome.quit()
