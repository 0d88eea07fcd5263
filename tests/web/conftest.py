"""A browser for all tests of a session, and a fresh page for each."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.web.browser import WIDE, Sight, find_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    path = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Any) -> Iterator[Callable[..., Sight]]:
    """Opens pages of addresses, and checks in the end that nothing went wrong in them."""
    contexts, sights = [], []

    def open_page(address: str, **options: Any) -> Sight:
        contexts.append(chromium.new_context(**{"viewport": WIDE, **options}))
        sights.append(Sight(contexts[-1].new_page(), address))
        return sights[-1]

    yield open_page
    for context in contexts:
        context.close()
    for sight in sights:
        sight.check()
