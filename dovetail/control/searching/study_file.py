"""The Optuna study of a search: a journal in the store's folder, which Optuna writes and reads. The store's events stay
the truth about tasks; the study has what Optuna's samplers, pruners and plots want to know of trials."""

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.describe import Search
from dovetail.vocabulary import DovetailError, Halving, InvalidWorkload, Population

if TYPE_CHECKING:
    import optuna

# Journals with a backend of their own, and samplers that know of trials under way.
_LEAST = (4, 2)
_LONGEST_NAME = 100
_INSTALL = "Install it: pip install 'dovetail[optuna]'."


def check_optuna() -> None:
    """Refuse to search without Optuna, or with one that is too old."""
    try:
        import optuna
    except ImportError as error:
        raise DovetailError(f"a search must have the package optuna; it is not installed. {_INSTALL}") from error
    if tuple(int(part) for part in optuna.__version__.split(".")[:2]) < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise DovetailError(
            f"a search must have optuna {least} or newer; version {optuna.__version__} is installed. {_INSTALL}"
        )


def study_path(home: Path, name: str) -> Path:
    """Where the study of a search lies in the store at `home`.

    >>> study_path(Path("store"), "sweep").name, study_path(Path("store"), "a/b").name
    ('sweep.journal', 'a_b-c14cddc0.journal')
    """
    plain = re.sub(r"[^\w.,=+@ -]", "_", name)[:_LONGEST_NAME]
    more = "" if plain == name else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return home / "studies" / f"{plain}{more}.journal"


def open_study(search: Search, *, home: Path, name: str) -> "optuna.Study":
    """The study of a search, to be written by who holds the store's lock; made where there is none."""
    check_optuna()
    import optuna

    path, directions = study_path(home, name), optuna.study.StudyDirection
    direction = directions.MAXIMIZE if search.goal == "max" else directions.MINIMIZE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _mend(path)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study that is made announces itself amid the live table
    try:
        study = optuna.create_study(
            study_name=name,
            storage=_storage(path),
            sampler=_sampler(search),
            pruner=_pruner(search),
            direction=direction,
            load_if_exists=True,
        )
    finally:
        optuna.logging.set_verbosity(verbosity)
    if study.direction != direction:
        raise InvalidWorkload(
            f"a search that goes on must have the goal that it began with; {name!r} was to "
            f"{study.direction.name.lower()} its metric. Give it another name, or begin anew with fresh=True (--fresh)."
        )
    if study.get_trials(deepcopy=False):
        # Generators are not kept: one with a seed would draw once more what it drew first.
        study.sampler.reseed_rng()
    return study


def read_study(home: Path, name: str) -> "optuna.Study":
    """The study of a search that ran, or runs, on the store at `home`."""
    check_optuna()
    import optuna

    if not (path := study_path(home, name)).exists():
        known = sorted(each.stem for each in path.parent.glob("*.journal"))
        raise DovetailError(
            f"only a search has a study; {name!r} is none"
            + (f", {known} are." if known else ". Make one with dt.search.")
        )
    return optuna.load_study(study_name=name, storage=_storage(path))


def _storage(path: Path) -> "optuna.storages.JournalStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))


def _mend(path: Path) -> None:
    """Remove what a writer that was killed has left: half a line, its lock. The store's lock says that it is gone."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        with path.open("rb+") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _sampler(search: Search) -> "optuna.samplers.BaseSampler":
    import optuna

    given: Any = search.sampler
    if given is None or given == "tpe":
        return optuna.samplers.TPESampler(constant_liar=True)
    if given == "random" or isinstance(given, Population):
        return optuna.samplers.RandomSampler()
    if not isinstance(given, optuna.samplers.BaseSampler):
        raise InvalidWorkload(f"a search's sampler must be one of Optuna's, or a dt.Population, got {given!r}.")
    return given


def _pruner(search: Search) -> "optuna.pruners.BasePruner":
    import optuna

    given: Any = search.pruner
    if given is None or isinstance(given, Halving):
        return optuna.pruners.NopPruner()
    if given == "median":
        return optuna.pruners.MedianPruner()
    if not isinstance(given, optuna.pruners.BasePruner):
        raise InvalidWorkload(f"a search's pruner must be one of Optuna's, or a dt.Halving, got {given!r}.")
    return given
