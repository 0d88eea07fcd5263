"""What is measured and not planned: `dovetail profile` and `dovetail cluster`."""

import contextlib
import dataclasses
from pathlib import Path

from dovetail.control import Settings
from dovetail.engines import Engine, detect
from dovetail.store import ControllerLock, Store
from dovetail.verbs.amendments import amend, limit_cluster
from dovetail.verbs.controller import check_not_stopped, ensure_directory, failures, open_controller
from dovetail.verbs.engine_places import Given, MakeEngine, described_programs, open_place, read_workload
from dovetail.vocabulary import Cluster, DovetailError, Kind, Link, Profile


def profile(
    workload: Given,
    *,
    store: str | Path = ".dovetail",
    engine: str | Engine | MakeEngine = "local",
    address: str = "auto",
) -> tuple[list[tuple[str, Profile]], list[str]]:
    """Measure what has not been measured yet; gives each profile with the names of the tasks it stands for, and
    what could not be measured with the reason."""
    with contextlib.ExitStack() as stack:
        workload, spares = stack.enter_context(read_workload(workload, engine=engine))
        workload, home = amend(workload), ensure_directory(Path(store))
        here, make = stack.enter_context(
            open_place(engine, address=address, programs=described_programs(workload), home=home, spares=spares)
        )
        controller = stack.enter_context(
            open_controller(workload, cluster=limit_cluster(here, workload), make=make, home=home, settings=Settings())
        )
        controller.reconcile()
        controller.measure(everything=True)
        check_not_stopped(controller)
        names: dict[str, list[str]] = {}
        for identity, one in controller.progress.items():
            if one.fingerprint:
                names.setdefault(one.fingerprint.family, []).append(controller.name_of(identity))
        failed = failures(controller)
        if failed and not names:
            raise DovetailError("no task could be measured:\n" + "\n".join(failed))
        found = [(", ".join(names[p.family]), p) for p in controller.store.profiles() if p.family in names]
        return found, failed


def cluster(*, measure: bool = False, store: str | Path = ".dovetail") -> Cluster:
    """This machine, with what was measured of its devices and links, now or earlier."""
    found, home = detect(), Path(store)
    if measure:
        found = _measure_rates(found)
        with ControllerLock(ensure_directory(home)), Store(home, write=True) as opened:
            opened.add(hardware=[(kind.name, found) for kind in found.kinds])
    elif (home / "store.sqlite").exists():
        with Store(home) as opened:
            known = opened.hardware(found.kinds[0].name, Cluster)
            found = _with_rates(found, known) if known else found
    return found


def rated_cluster(*, store: str | Path) -> Cluster:
    """This machine with the rates of its kinds, which predictions for other kinds start from; measured where they have
    not been yet."""
    known = cluster(store=store)
    return known if all(k.matrix_flops_per_second for k in known.kinds) else cluster(measure=True, store=store)


def _with_rates(found: Cluster, known: Cluster) -> Cluster:
    """This machine with the rates that were measured of it earlier."""
    rate = known.nodes[0].update_parameters_per_second
    nodes = tuple(dataclasses.replace(node, update_parameters_per_second=rate) for node in found.nodes)
    return dataclasses.replace(found, kinds=known.kinds, links=known.links, nodes=nodes)


def _measure_rates(found: Cluster) -> Cluster:
    import torch

    from dovetail.profile.devices import measure_kind, measure_links, measure_updates

    kinds: list[Kind] = []
    links: list[Link] = []
    for kind in found.kinds:
        device = torch.device(kind.processor)
        kinds.append(measure_kind(kind, device=device))
        links += measure_links(kind, device=device)
    (node,) = found.nodes
    node = dataclasses.replace(node, update_parameters_per_second=measure_updates(threads=node.cores))
    return dataclasses.replace(found, kinds=tuple(kinds), links=tuple(links), nodes=(node,))
