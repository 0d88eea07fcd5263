"""What is removed from a store's scratch is what Dovetail made there, and nothing else."""

import os

import pytest

from dovetail.store import clear_scratch, make_scratch
from dovetail.vocabulary import StoreError
from tests.faults.other_user import OTHER, as_root


@pytest.fixture
def precious(tmp_path):
    """A folder of the user's that has files by any name."""
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in ("thesis.tex", "tmp-notes", "control-group.csv", "code-of-mine"):
        (folder / name).write_text("years of work")
    return folder


def test_a_link_is_refused_and_its_target_is_as_it_was(tmp_path, precious):
    home = tmp_path / "store"
    home.mkdir()
    (home / "scratch").symlink_to(precious)
    before = sorted(precious.iterdir())
    for act in (lambda: clear_scratch(home), lambda: make_scratch(home, prefix="meeting-")):
        with pytest.raises(
            StoreError, match=r"scratch must be a folder of the store's own.*a link to .*precious. Run: rm"
        ):
            act()
    assert sorted(precious.iterdir()) == before


def test_a_link_that_leads_nowhere_is_refused_too(tmp_path):
    (tmp_path / "scratch").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="it is a link to"):
        make_scratch(tmp_path, prefix="meeting-")
    assert not (tmp_path / "nowhere").exists()


def test_links_inside_are_removed_and_not_followed(tmp_path, precious):
    made = make_scratch(tmp_path, prefix="meeting-")
    (made / "link").symlink_to(precious)
    (tmp_path / "scratch" / "tmplink").symlink_to(precious)
    clear_scratch(tmp_path)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert len(list(precious.iterdir())) == 4


def test_what_dovetail_did_not_make_stays(tmp_path):
    made = make_scratch(tmp_path, prefix="code-")
    (made.parent / "my data").mkdir()
    (made.parent / "note.txt").write_text("mine")
    clear_scratch(tmp_path)
    assert sorted(path.name for path in made.parent.iterdir()) == ["my data", "note.txt"]


@as_root
def test_what_belongs_to_another_user_stays(tmp_path):
    made = make_scratch(tmp_path, prefix="code-")
    os.chown(made, OTHER, OTHER)
    clear_scratch(tmp_path)
    assert made.exists()


def test_a_store_without_one_has_nothing_to_clear(tmp_path):
    clear_scratch(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_store_around_it_is_private_too(tmp_path):
    make_scratch(tmp_path / "store", prefix="meeting-")
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
