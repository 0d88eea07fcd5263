"""What people who use Optuna write: `study.optimize(n_jobs=2)` over a plain loop, here of the trials that another has
asked for, so that both train the same.

`python bench/optuna_threads.py sweeps/searches.py:timed TRIALS.json [THREADS]` prints one line of JSON. THREADS are
those of torch in each of the two; without it, torch's own choice, as in most such programs.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    began = time.perf_counter()
    path, trials = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    if len(sys.argv) > 3:
        os.environ["OMP_NUM_THREADS"] = sys.argv[3]  # before anybody imports torch

    import optuna
    from one_after_another import train

    from dovetail.control.searching.suggesting import suggest_parameters
    from dovetail.describe import Search, load, load_described

    search = load_described(path)
    assert isinstance(search, Search)
    build = load(search.program)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(constant_liar=True))
    for trial in trials:
        study.enqueue_trial(trial)

    def objective(trial: optuna.Trial) -> float:
        row = train(search.task(trial.number, suggest_parameters(search, trial)), build=build)
        return float(row["metrics"][search.metric])

    study.optimize(objective, n_trials=len(trials), n_jobs=2)
    found = {"seconds": time.perf_counter() - began, "trials": len(study.trials), "best": study.best_value}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
