from dovetail.store import Point, Store
from dovetail.verbs.serve_model import ServedChoice
from tests.control.simulations import RiggedEngine, carry_out, controller, task, workload, world


def test_the_best_of_a_loss_is_the_smallest_unless_told(tmp_path):
    tasks = [task("low", width=1), task("high", width=2)]
    with Store(tmp_path, write=True) as store:
        carry_out(controller(workload(*tasks), store, engine=RiggedEngine(world())))
        for record, value in zip(tasks, (0.1, 0.9), strict=True):
            store.add(points=[Point(task=record.identity, name="rmse", step=100, value=value, at_seconds=100)])
    assert ServedChoice(store=tmp_path, metric="rmse").choose()[1] == {"model": "low", "rmse": 0.1}
    assert ServedChoice(store=tmp_path, metric="rmse", goal="max").choose()[1]["model"] == "high"
