"""What is left out where packages that `pip install '.[tools]'` brings are not installed: with them Ray starts all of
its dashboard on every node, for which the machines of CI have no time."""

import importlib.util

collect_ignore: list[str] = []
if importlib.util.find_spec("lightning") is None:
    collect_ignore += ["dovetail/adapters/lightning.py", "tests/adapters/test_lightning.py"]
    collect_ignore += ["tests/adapters/test_in_a_sweep.py", "tests/docs/test_adapters.py"]
if importlib.util.find_spec("datasets") is None:
    collect_ignore += ["tests/adapters/test_hf_trainer.py"]
