"""Every bench, one after another, each with `--check`; at the end what was missed. Ends with 1 where something was.

`python bench/all.py [NAME ...] [--quick]`. A bench that fails does not keep the others from running. Those of one CUDA
device (small, fp8, spill, fuse) are named and left out where there is none.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from dovetail.engines import detect

HERE = Path(__file__).parent
BENCHES: dict[str, tuple[str, ...]] = {
    "overhead": ("overhead.py",),
    "fixed_cost": ("fixed_cost.py",),
    "simulation": ("simulation.py",),
    "feed": ("feed.py",),
    "feed_joint": ("feed_joint.py",),
    "select_examples": ("select_examples.py",),
    "joint": ("joint.py",),
    "partition": ("partition.py",),
    "share": ("share.py",),
    "spot": ("spot.py",),
    "convergence": ("convergence.py",),
    "convergence-charlm": ("convergence.py", "charlm"),
    "numeric-rates": ("numeric.py",),
    "demo": ("demo.py",),
    "sweep": ("sweep.py",),
    "first_week": ("first_week.py",),
    "search": ("search.py",),
    "race": ("race.py",),
    "adapters": ("adapters.py",),
    "pipeline": ("pipeline.py",),
    "pipeline_kills": ("pipeline_kills.py",),
    "hop": ("hop.py",),
    **{f"nodes-{part}": ("nodes.py", part) for part in ("gangs", "come-and-go", "spend")},
    "chaos": ("chaos.py", "--kills", "50"),
    "chaos-ray": ("chaos.py", "--engine", "ray", "--kills", "50"),
    "object_store": ("object_store.py",),
    "soak": ("soak.py",),
    "daemon_load": ("daemon_load.py",),
    "page_load": ("page_load.py",),
    "page_cost": ("page_cost.py",),
    "occlusion": ("occlusion.py",),
    "drift": ("drift.py",),
    "guard": ("guard.py",),
    "frames": ("frames.py",),
    "routing": ("routing.py",),
    "why": ("why.py",),
    "serve": ("serve.py",),
    "server": ("server.py",),
    "trackers": ("trackers.py",),
    "random_programs": ("random_programs.py",),
    "adversary": ("adversary.py",),
}
"""Each bench and the words of its command."""
CUDA = {
    "small": ("small.py",),
    "small-exact": ("small.py", "--exact"),
    "fp8": ("fp8.py",),
    "frame_placement": ("frame_placement.py",),
    **{f"fuse-{row}": ("fuse.py", row) for row in ("mlp", "gpt", "lora")},
    "convergence-gpt": ("convergence.py", "gpt"),
    **{f"spill-{row}": ("spill.py", row) for row in ("24g-b8", "24g-b32", "8g-b8", "interleave")},
    **{f"spill-{row}": ("spill.py", row) for row in ("largest", "largest-8bit", "disk")},
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*BENCHES, *CUDA]))
    arguments.add_argument("--quick", action="store_true", help="each at a toy size; writes nothing")
    chosen = arguments.parse_args()
    known = BENCHES | CUDA
    if unknown := set(chosen.names) - set(known):
        arguments.error(f"NAME must be one of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    cuda = any(kind.processor == "cuda" for kind in detect().kinds)
    names = chosen.names or [*BENCHES, *(CUDA if cuda else ())]
    missed = [line for name in names for line in run(name, [*known[name], *(["--quick"] if chosen.quick else [])])]
    if not (chosen.names or cuda):
        print(f"not run: {', '.join(CUDA)}, which need a CUDA device")
    print("\n".join(["missed:", *missed]) if missed else f"{len(names)} benches, nothing missed")
    return 1 if missed else 0


def run(name: str, words: list[str]) -> list[str]:
    """Run a bench and show what it prints; gives what it missed."""
    print(f"== {name}", flush=True)
    path, *rest = words
    command = [sys.executable, str(HERE / path), *rest, "--check"]
    missed = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("MISSED"):
                missed.append(f"  {name}: {line.removeprefix('MISSED').strip()}")
    if process.returncode and not missed:
        missed.append(f"  {name}: ended with {process.returncode} and no bar missed; see what it printed")
    return missed


if __name__ == "__main__":
    sys.exit(main())
