"""docs/pipeline.md and its pictures say what the simulator says now."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def make_pipeline():
    spec = importlib.util.spec_from_file_location("make_pipeline", ROOT / "docs" / "make_pipeline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_show_every_action():
    made = make_pipeline()
    run = made.simulate(made.TIMETABLES["zero_bubble"]([1] * 3, microbatches=4), made.Durations.equal(3))
    boxes = ElementTree.fromstring(made.svg(run)).iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(boxes)) == 3 * 4 * 3


def test_the_page_and_its_pictures_are_up_to_date():
    made = make_pipeline()
    stale = "docs/pipeline.md is stale. Run: .venv/bin/python docs/make_pipeline.py"
    assert (ROOT / "docs" / "pipeline.md").read_text() == made.page(), stale
    for name, picture in made.pictures().items():
        assert (ROOT / "docs" / "timetables" / f"{name}.svg").read_text() == picture, stale
