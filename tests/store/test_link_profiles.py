import dataclasses

from dovetail.store import Store, keep_links, known_links
from dovetail.store.link_profiles import FRESH_SECONDS
from dovetail.vocabulary import Cluster, Kind, Link, dumps, loads

NUMBERS = {"n0": "ff", "n1": "aa", "n2": "cc"}
AT = 1.7e9


def pair(source, target, *, rate=1e9, at=AT):
    return Link(
        source=source,
        target=target,
        bytes_per_second=rate,
        latency_seconds=1e-4,
        between_nodes=True,
        measured_seconds=at,
    )


def cluster(*links):
    whole = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=3)
    nodes = tuple(dataclasses.replace(node, labels={"number": NUMBERS[node.name]}) for node in whole.nodes)
    return dataclasses.replace(whole, nodes=nodes, links=links)


def known(home, numbers=NUMBERS, *, now=AT):
    return {(link.source, link.target): link for link in known_links(home, numbers, now=now)}


def test_links_come_back_under_the_names_that_their_nodes_have_then(tmp_path):
    assert known(tmp_path) == {}
    inside = Link(source="process", target="process", bytes_per_second=2e9)
    stated = Link(source="host", target="host", bytes_per_second=2e9, between_nodes=True)
    with Store(tmp_path, write=True) as store:
        keep_links(store, cluster(pair("n0", "n1", rate=3e8), pair("n2", "n1"), inside, stated), label="number")
    assert known(tmp_path) == {("n1", "n0"): pair("n1", "n0", rate=3e8), ("n1", "n2"): pair("n1", "n2")}
    assert known(tmp_path, {"n7": "ff", "n8": "aa", "n9": "dd"}) == {("n8", "n7"): pair("n8", "n7", rate=3e8)}


def test_the_newest_of_a_pair_counts_and_what_is_old_does_not(tmp_path):
    with Store(tmp_path, write=True) as store:
        keep_links(store, cluster(pair("n0", "n1")), label="number")
        keep_links(store, cluster(pair("n1", "n0", rate=5e8, at=AT + 1)), label="number")
    assert not known(tmp_path), "by a clock that is ahead"
    (link,) = known(tmp_path, now=AT + 1).values()
    assert link.bytes_per_second == 5e8
    assert known(tmp_path, now=AT + FRESH_SECONDS)
    assert not known(tmp_path, now=AT + 1 + FRESH_SECONDS)


def test_links_go_to_json_and_those_of_older_stores_still_come_back():
    link = pair("n0", "n1")
    assert loads(Link, dumps(link)) == link
    older = '{"source":"host","target":"host","bytes_per_second":1e9,"latency_seconds":0.1,"between_nodes":true}'
    assert loads(Link, older).measured_seconds == 0.0
