"""Nothing that is read can run code unless this store signed it; what is written is this user's alone; secrets stand in
no event, log or page."""

import ast
import stat
from pathlib import Path

import pytest

import dovetail
from dovetail.store import Store
from tests.cli import processes
from tests.cli.processes import HOME, write

PACKAGE = Path(dovetail.__file__).parent
# `carried` loads what its own key has signed; `traits` only writes one, to take its digest. A feed's processes pass
# their stages and items on to each other over sockets that were made as pairs and have no name.
PICKLING = {"describe/carried.py", "describe/traits.py"}
PICKLING |= {"feeds/process_server.py", "feeds/transport.py", "feeds/travel.py"}
UNSAFE = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def called(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_unpickled_but_what_this_store_has_signed(path):
    tree = ast.parse(path.read_text())
    if str(path.relative_to(PACKAGE)) not in PICKLING:
        assert not imported(tree) & UNSAFE
    calls = called(tree)
    assert not {"torch.load", "numpy.load", "np.load", "eval", "exec"} & calls
    # These of torch unpickle what came over the network.
    assert not {name for name in calls if name.rpartition(".")[2].endswith(("_object", "_object_list"))}
    if str(path.relative_to(PACKAGE)) in ("describe/traits.py", "feeds/process_server.py", "feeds/travel.py"):
        assert not {"cloudpickle.loads", "pickle.loads"} & calls
    if str(path.relative_to(PACKAGE)) == "feeds/transport.py":
        assert "socket.socketpair" in calls
        assert not {"socket.socket", "socket.create_connection", "socket.create_server"} & calls


SECRET, TOLD, QUIET = "hf_0123456789abcdef", "correct-horse-battery", "env-0123456789"
SWEEP = f"""
import dovetail as dt

workload = dt.workload(
    [
        dt.task("programs.py:good", name="good", steps=3, api_token="{SECRET}"),
        dt.task("programs.py:bad", name="bad", steps=3, hub={{"password": "{TOLD}"}}),
    ],
    name="secret",
)
"""
PROGRAMS = """
import os
import torch
from torch import nn
import dovetail as dt


def good(api_token=""):
    print("logging in with", api_token, "and", os.environ["CHAOS_API_KEY"])
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dt.Training(model=model, batches=[torch.ones(2, 2)], loss=lambda m, b: m(b).mean(), optimizer=optimizer)


def bad(hub=None):
    raise RuntimeError(f"login failed: {hub['password']} {os.environ['CHAOS_API_KEY']}")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run with secrets in parameters and in the environment, in a store's folder that anybody may look into."""
    folder = write(tmp_path_factory.mktemp("secret"), programs=PROGRAMS, sweep=SWEEP)
    (folder / HOME).mkdir(mode=0o755)
    processes.ENVIRONMENT["CHAOS_API_KEY"] = QUIET
    try:
        found = processes.dovetail("run", "sweep.py", cwd=folder)
        report = processes.dovetail("report", "-o", "report.html", cwd=folder)
    finally:
        del processes.ENVIRONMENT["CHAOS_API_KEY"]
    assert found.code == 1, found.err
    assert report.code == 0, report.err
    return folder, found


@pytest.mark.process
def test_secrets_stand_in_no_event_log_or_page(ran):
    folder, found = ran
    with Store(folder / HOME) as store:
        said = "\n".join(str(event.data()) for _, event in store.events())
    assert "login failed: ***" in said, "what happened is told"
    logs = "\n".join(path.read_text() for path in (folder / HOME / "logs").iterdir())
    assert "logging in with *** and ***" in logs
    for text in (said, logs, (folder / "report.html").read_text(), found.out, found.err):
        assert not [secret for secret in (SECRET, TOLD, QUIET) if secret in text]


@pytest.mark.process
def test_what_is_written_is_this_users_alone(ran):
    folder, _ = ran
    for path in [*(folder / HOME).rglob("*"), folder / "report.html"]:
        if path.is_file():
            inside = [path, *path.parents[: len(path.relative_to(folder).parts) - 1]]
            shut = [each for each in inside if not stat.S_IMODE(each.stat().st_mode) & 0o077]
            assert shut, f"{path} can be read by others"
