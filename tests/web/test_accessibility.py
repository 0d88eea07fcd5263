"""No view breaks a rule of WCAG of level A or AA that axe-core can find, in light or dark."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.store import Store
from tests.web.browser import VIEWS, Sight, broken_rules, serving
from tests.web.synthetic import fill_sweep
from tests.web.test_page import make_sweep_task

pytestmark = pytest.mark.process


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_is_broken(tmp_path: Path, look: Callable[..., Sight], scheme: str):
    with Store(tmp_path / "store", write=True) as store:
        fill_sweep(store)
    broken = {}
    with serving(tmp_path / "store", options=("--port", "7570")) as found:
        sight = look(found, color_scheme=scheme, bypass_csp=True).open()
        for view in (*VIEWS, "task"):
            sight.to(view, **({"id": make_sweep_task()} if view == "task" else {}))
            sight.page.wait_for_timeout(700)
            for details in sight.page.locator("details").all():
                details.evaluate("each => { each.open = true; }")
            broken |= broken_rules(sight, view)
    assert broken == {}
