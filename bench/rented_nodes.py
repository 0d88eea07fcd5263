"""A market and a cloud for `bench/nodes.py spend`, as commands: prices until now, and real Ray nodes on this machine
that are started and stopped, or taken away without a word when their market has no price any more.

`rented_nodes.py FOLDER prices`, or as docs/ray.md says of a provisioner: `start NAME KIND ZONE MARKET`, `stop NAME`,
`list`. The folder has the whole table of prices (`table.csv`), the head's address (`address`) and a file a node.
"""

import csv
import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COLUMNS = ("time", "kind", "zone", "market", "price")
OBJECT_STORE_BYTES = 80 << 20  # of Ray, which holds nothing of ours; its least is 75 MiB


def main() -> None:
    """Do what is asked."""
    folder, what, *words = sys.argv[1:]
    {"prices": print_prices, "start": start, "stop": stop, "list": print_nodes}[what](Path(folder), *words)


def print_prices(folder: Path) -> None:
    """What is known by now: nobody knows the prices to come."""
    out = csv.DictWriter(sys.stdout, COLUMNS)
    out.writeheader()
    out.writerows(_rows_until_now(folder))


def start(folder: Path, name: str, kind: str, zone: str, market: str) -> None:
    """Begin a node of one device."""
    log = open(folder / f"{name}.log", "ab")  # noqa: SIM115, the node's, for as long as it runs
    words = [Path(sys.executable).with_name("ray"), "start", "--block", f"--address={(folder / 'address').read_text()}"]
    words += ["--num-cpus=1", f"--object-store-memory={OBJECT_STORE_BYTES}", f"--labels=dovetail-node={name}"]
    words += [f'--resources={{"kind:{kind}": 1}}']
    quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    node = subprocess.Popen(words, start_new_session=True, **quiet)
    (folder / f"{name}.node").write_text(f"{node.pid},{kind},{zone},{market}")


def stop(folder: Path, name: str) -> None:
    """End a node in good order."""
    _end(folder / f"{name}.node", signal.SIGTERM)


def print_nodes(folder: Path) -> None:
    """What runs; spot nodes whose market is no more are taken away first."""
    now = {(row["kind"], row["zone"], row["market"]): row["price"] for row in _rows_until_now(folder)}
    print("name,kind,zone,market,leaves")
    for path in sorted(folder.glob("*.node")):
        _, kind, zone, market = path.read_text().split(",")
        if market == "spot" and not now[kind, zone, "spot"]:
            _end(path, signal.SIGKILL)
        else:
            print(f"{path.stem},{kind},{zone},{market},")


def _rows_until_now(folder: Path) -> list[dict[str, str]]:
    with open(folder / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if datetime.datetime.fromisoformat(row["time"]).timestamp() <= time.time()]


def _end(path: Path, number: signal.Signals) -> None:
    """Signal a node's own processes, of which none but those that it started are in its session."""
    if not path.exists():
        return
    leader = int(path.read_text().split(",")[0])
    path.unlink()
    if number == signal.SIGTERM:
        os.kill(leader, number)
        return
    for process in _session(leader):
        os.kill(process, number)


def _session(leader: int) -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if os.getsid(int(each.name)) == leader:
                    found.append(int(each.name))
            except ProcessLookupError:
                continue
    return found


if __name__ == "__main__":
    main()
