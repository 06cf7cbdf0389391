"""The inspector in Chromium: no console errors, no requests to other hosts, no page wider than the window."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import uvicorn
from tests.support.factories import chain, config, put
from tests.support.inspecting import HOSTILE, TOKEN, make_failed, make_thread, orphan, writer
from langchain_core.messages import AIMessage
from tests.support.servers import Server, free_port
from tests.support.uniform import Uniform

from redis_saver import RedisSaver, inspector

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra test)")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="there is no chromium and chromedriver on the PATH (Debian: chromium, chromium-driver)",
    ),
    pytest.mark.xdist_group("chromium"),
]
BROKEN = "broken <b> " + "v" * 150
WAIT = 60
"""Seconds that a page may take on a loaded machine."""


class Shown:
    """A running inspector with its own Redis server."""

    def __init__(self) -> None:
        self.server, self.port = Server(), free_port()
        self.saver: RedisSaver = writer(self.server.url)
        self.web = uvicorn.Server(
            uvicorn.Config(
                inspector.app(self.saver, token=TOKEN, allow_changes=True),
                port=self.port,
                log_level="warning",
                lifespan="off",
            )
        )
        self.thread = threading.Thread(target=self.web.run, daemon=True)
        self.thread.start()

    def url(self, name: str = "", **arguments: Any) -> str:
        return f"http://127.0.0.1:{self.port}/{name}?{urlencode(arguments, errors='surrogatepass')}"

    def stop(self) -> None:
        self.web.should_exit = True
        self.thread.join(WAIT)
        self.server.stop()


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    made = Shown()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def filled(shown: Shown) -> Iterator[Shown]:
    make_thread(shown.saver, "user-1:chat")
    make_failed(shown.saver, "fails")
    uniform = Uniform(shown.saver)
    for name in HOSTILE:
        text = name.replace("\ud800", "")
        long = {
            text: "w" * 3000,
            "list": [{text: list(range(60))}],
            "messages": [AIMessage(text * 20 + "v" * 900, id=text)],
        }
        metadata = {"source": text, "step": 1, "parents": {}, text: text}
        asyncio.run(put(uniform, config(name), long, metadata=metadata))
    asyncio.run(put(uniform, config(BROKEN), {"n": 1}))
    shown.server.client().delete(f"langgraph:{{{BROKEN}}}:data")
    with shown.saver.own("user-1:chat", by="worker <1> " + "w" * 60, lease="1h"):
        with shown.saver.own(HOSTILE[0], by=HOSTILE[1], run_id=HOSTILE[1] + "r" * 200):
            orphan(shown.saver, HOSTILE[0])
            yield shown


@pytest.fixture(scope="module")
def chromium(shown: Shown) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-component-update",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(WAIT)
    driver.get(shown.url(token=TOKEN))
    yield driver
    driver.quit()


def errors(driver: Any) -> list[str]:
    """Return console errors and requests to other hosts since the last call."""
    found = [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    for entry in driver.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if urlsplit(url).scheme in ("http", "https", "ws") and urlsplit(url).hostname != "127.0.0.1":
                found.append(f"request to {url}")
    return found


def pages(shown: Shown) -> list[str]:
    chat = {"thread": "user-1:chat"}
    found = [
        shown.url(),
        shown.url("server"),
        shown.url(state="orphaned"),
        shown.url("thread", id="user-1:chat"),
        shown.url("checkpoint", **chat),
        shown.url("writes", **chat),
    ]
    found += [shown.url(view, channel="messages", **chat) for view in ("channel", "value")]
    found += [shown.url("checkpoint", thread="fails"), shown.url("thread", id="nobody")]
    newest, parent = (
        one.config["configurable"]["checkpoint_id"] for one in shown.saver.list(config("user-1:chat"), limit=2)
    )
    a, b = (urlencode({"thread": "user-1:chat", "id": one}) for one in (parent, newest))
    found += [shown.url("cost", **chat), shown.url("diff", a=a, b=b), shown.url("thread", id="user-1:chat", a=a)]
    found += [shown.url(f"docs/{name}") for name in ("index", "tiered", "metrics", "storage-format", "alerts.yaml")]
    views = (("thread", "id"), ("checkpoint", "thread"), ("cost", "thread"))
    return found + [shown.url(view, **{key: name}) for name in HOSTILE for view, key in views]


def test_each_page_has_no_errors_and_fits_the_window(filled: Shown, chromium: Any) -> None:
    """A page is loaded once, and then shown in each width and color scheme, which are CSS alone."""
    errors(chromium)
    for url in pages(filled):
        chromium.get(url)
        assert chromium.title.endswith("redis_saver") and chromium.find_elements(By.CSS_SELECTOR, "main h1"), url
        for width, scheme in ((1200, "light"), (1200, "dark"), (400, "dark"), (400, "light")):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            across, ground, ink = chromium.execute_script(
                "const root = document.documentElement, s = getComputedStyle(root);"
                "return [root.scrollWidth, s.backgroundColor, s.color]"
            )
            assert across <= width, (url, width)
            assert (luminance(ground) < luminance(ink)) == (scheme == "dark"), (url, width)
        assert [one for one in errors(chromium) if "404" not in one] == [], url


def luminance(color: str) -> int:
    return sum(int(part) for part in color.removeprefix("rgb(").rstrip(")").split(","))


def test_a_hostile_thread_is_reachable_by_clicks(filled: Shown, chromium: Any) -> None:
    for at, name in enumerate(HOSTILE):
        chromium.get(filled.url(sort="name"))
        (link,) = [
            one for one in chromium.find_elements(By.CSS_SELECTOR, "td.name a")
            if one.get_attribute("href").endswith("?" + urlencode({"id": name}, errors="surrogatepass"))
        ]  # fmt: skip
        link.click()
        chromium.find_element(By.CSS_SELECTOR, "a.id").click()
        assert "wwwww" in chromium.find_element(By.TAG_NAME, "main").text, at
    assert errors(chromium) == []


def test_two_checkpoints_can_be_compared_by_keyboard(filled: Shown, chromium: Any) -> None:
    chromium.get(filled.url("thread", id="user-1:chat", ns=""))
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.set_window_size(1280, 900)
    chromium.find_element(By.LINK_TEXT, "before").send_keys(Keys.ENTER)
    WebDriverWait(chromium, WAIT).until(lambda driver: "/diff?" in driver.current_url)
    assert "messages" in chromium.find_element(By.TAG_NAME, "main").text
    chromium.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert chromium.switch_to.active_element.get_attribute("class") == "skip"


def test_a_turn_is_found_and_opened_by_keyboard(filled: Shown, chromium: Any) -> None:
    chromium.get(filled.url("thread", id="user-1:chat"))

    def press(key: str) -> Any:
        """Press a key, and return the element that has the focus."""
        chromium.switch_to.active_element.send_keys(key)
        return chromium.switch_to.active_element

    assert press(Keys.TAB).get_attribute("class") == "skip", "the first link skips to the page"
    press(Keys.ENTER)
    summary = next(found for _ in range(60) if (found := press(Keys.TAB)).tag_name == "summary" and not is_open(found))
    press(Keys.ENTER)
    assert is_open(summary)
    press(Keys.TAB)
    assert chromium.switch_to.active_element.tag_name in ("a", "button"), "the controls of an opened part follow it"
    search = chromium.find_element(By.NAME, "q")
    search.send_keys("no such text", Keys.ENTER)
    wait_for(chromium, "Not found in the newest")
    chromium.find_element(By.NAME, "until").send_keys("2000-01-02 03:04", Keys.ENTER)
    wait_for(chromium, "Not found in the next 0 checkpoints")
    assert errors(chromium) == []


def wait_for(chromium: Any, text: str) -> None:
    WebDriverWait(chromium, WAIT).until(lambda driver: text in driver.find_element(By.TAG_NAME, "main").text)


def is_open(summary: Any) -> bool:
    return summary.find_element(By.XPATH, "..").get_attribute("open") is not None


def test_a_live_list_and_a_thread_page_show_changes(filled: Shown, chromium: Any) -> None:
    """The pages poll the server. Only the changed part is replaced, so the form stays."""
    uniform, name = Uniform(filled.saver), "old-<b>1"
    where = asyncio.run(put(uniform, config(name), {"n": 1}))
    chromium.get(filled.url("thread", id=name))
    of_thread = chromium.current_window_handle
    chromium.switch_to.new_window("tab")
    of_list = chromium.current_window_handle
    chromium.get(filled.url(live="yes", prefix="new-"))
    field = chromium.find_element(By.NAME, "prefix")
    assert "No thread" in chromium.find_element(By.ID, "found").text
    asyncio.run(put(uniform, config("new-<b>1"), {"n": 1}))
    asyncio.run(put(uniform, where, {"n": 2}))
    WebDriverWait(chromium, WAIT).until(lambda driver: "new-<b>1" in driver.find_element(By.TAG_NAME, "main").text)
    assert field.get_attribute("value") == "new-" and errors(chromium) == []
    chromium.close()
    assert of_list not in chromium.window_handles
    chromium.switch_to.window(of_thread)
    WebDriverWait(chromium, WAIT).until(
        lambda driver: "The thread has changed: 2 checkpoints" in driver.find_element(By.ID, "newer").text
    )
    chromium.find_element(By.CSS_SELECTOR, "#newer a").send_keys(Keys.ENTER)
    WebDriverWait(chromium, WAIT).until(lambda driver: len(driver.find_elements(By.CSS_SELECTOR, "tr a.id")) == 2)
    assert errors(chromium) == []


def test_a_change_is_confirmed_and_done_by_clicks(filled: Shown, chromium: Any) -> None:
    """A browser says where a form comes from only if the referrer policy lets it."""
    asyncio.run(put(Uniform(filled.saver), config("gone <b>"), {"n": 1}))
    chromium.get(filled.url("thread", id="gone <b>"))
    chromium.find_element(By.CSS_SELECTOR, ".changes summary").send_keys(Keys.ENTER)
    chromium.find_element(By.CSS_SELECTOR, "button.danger").send_keys(Keys.ENTER)
    says = "return document.querySelector('.notice')?.innerText || ''"  # the old page may be gone at any moment
    WebDriverWait(chromium, WAIT).until(lambda driver: "1 checkpoint" in driver.execute_script(says))
    chromium.find_element(By.CSS_SELECTOR, "button.danger").send_keys(Keys.ENTER)
    WebDriverWait(chromium, WAIT).until(lambda driver: driver.find_elements(By.CSS_SELECTOR, ".filters"))
    assert filled.saver.get_thread("gone <b>") is None and errors(chromium) == []


@pytest.mark.slow
def test_ten_thousand_checkpoints_are_shown_in_pages(filled: Shown, chromium: Any) -> None:
    asyncio.run(chain(Uniform(filled.saver), "long", 10_000))
    chromium.get(filled.url("thread", id="long"))
    assert len(chromium.find_elements(By.CSS_SELECTOR, "tr a.id")) == 100
    chromium.find_element(By.LINK_TEXT, "Older turns").click()
    assert len(chromium.find_elements(By.CSS_SELECTOR, "tr a.id")) == 100
    assert "10,000" in chromium.find_element(By.TAG_NAME, "main").text and errors(chromium) == []
