"""Other people's input pipelines on those of `bench/feed_pipelines.py`, each in an environment of its own.

`python bench/feed_peers.py PEER PIPELINE SECONDS WARM_SECONDS` runs one inside such an environment and prints its rate
as JSON; `ensure(peer)` makes the environment. torchdata.nodes and SPDL are set by hand, as by somebody who knows what
each stage takes; Grain is given threads and then processes, and the better of the two counts; tf.data and Ray Data tune
themselves. All keep the order of items.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from feed_pipelines import PIPELINES, Pipeline, steady_rate

HERE = Path(__file__).parent
PACKAGES = {
    "torchdata.nodes": ("torchdata==0.11.0",),
    "SPDL": ("spdl-core==0.8.0",),
    "Grain": ("grain==0.2.18",),
    "tf.data": ("tensorflow==2.21.0",),
    "Ray Data": ("ray[data]==2.60.0",),
}
"""What is installed for each."""


def cache_folder() -> Path:
    """Where environments are kept from one run to the next."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dovetail-bench" / "feed"


def ensure(peer: str) -> tuple[Path | None, str]:
    """The Python of a peer's environment, made and filled where it is not there yet; or None and why."""
    folder = cache_folder() / peer.replace(" ", "-").lower()
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
            words = [str(python), "-m", "pip", "install", "--quiet", *_beside(peer), *PACKAGES[peer]]
            subprocess.run(words, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            said = error.stderr if isinstance(error.stderr, str) else error.stderr.decode(errors="replace")
            return None, (said.strip().splitlines() or ["no reason was given"])[-1]
        ready.touch()
    return python, ""


def _beside(peer: str) -> tuple[str, ...]:
    # torch only where it is needed; NumPy and Pillow are the pipelines' own.
    return ("numpy", "pillow", *(("torch==2.13.0",) if peer == "torchdata.nodes" else ()))


def rate_of(peer: str, pipeline: Pipeline, *, seconds: float, warm_seconds: float) -> tuple[float | None, str]:
    """Items per second of a peer in its own environment; or None and why not."""
    python, reason = ensure(peer)
    if python is None:
        return None, f"could not be installed: {reason}"
    words = [str(python), str(Path(__file__)), peer, pipeline.name, str(seconds), str(warm_seconds)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "RAY_DEDUP_LOGS": "0"}
    # To files and not to pipes: processes of a peer that outlive it would keep those open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=out, stderr=errors, env=environment, start_new_session=True)
        try:
            process.wait(timeout=60 + 5 * (seconds + warm_seconds))
        except subprocess.TimeoutExpired:
            return None, "did not end in time"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        errors.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith('{"rate"')]
        said = errors.read().strip().splitlines()
    if not lines:
        return None, (said or [f"ended with {process.returncode}"])[-1][:200]
    return float(json.loads(lines[-1])["rate"]), ""


@contextlib.contextmanager
def torchdata_nodes(pipeline: Pipeline) -> Iterator[Any]:
    """A parallel mapper for each stage; in processes where the stage holds the lock."""
    from torch.utils.data import default_collate
    from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper, ParallelMapper, Prefetcher

    node = IterableWrapper(range(pipeline.items))
    method = "process" if pipeline.holds_lock else "thread"
    for stage, workers in zip(pipeline.stages, pipeline.by_hand, strict=True):
        node = ParallelMapper(node, map_fn=stage, num_workers=workers, in_order=True, method=method)
    node = Mapper(Batcher(node, batch_size=pipeline.batch), default_collate)
    yield Loader(Prefetcher(node, prefetch_factor=4))


@contextlib.contextmanager
def spdl(pipeline: Pipeline) -> Iterator[Any]:
    """Concurrency for each stage; in a process pool where the stage holds the lock."""
    from concurrent.futures import ProcessPoolExecutor

    import numpy
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(range(pipeline.items))
    for stage, workers in zip(pipeline.stages, pipeline.by_hand, strict=True):
        executor = ProcessPoolExecutor(workers) if pipeline.holds_lock else None
        builder = builder.pipe(stage, concurrency=workers, executor=executor, output_order="input")
    built = builder.aggregate(pipeline.batch).pipe(numpy.stack).add_sink(4).build(num_threads=sum(pipeline.by_hand) + 1)
    with built.auto_stop():
        yield built


@contextlib.contextmanager
def grain(pipeline: Pipeline, *, processes: int = 0) -> Iterator[Any]:
    """Threads that read ahead, or processes."""
    import grain

    data = grain.MapDataset.range(pipeline.items)
    for stage in pipeline.stages:
        data = data.map(stage)
    if processes:
        iterable = data.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=pipeline.batch))
        options = grain.MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=4)
        yield iterable.batch(pipeline.batch).mp_prefetch(options)
    else:
        ahead = grain.ReadOptions(num_threads=16, prefetch_buffer_size=8 * pipeline.batch)
        yield data.to_iter_dataset(ahead).batch(pipeline.batch)


@contextlib.contextmanager
def tf_data(pipeline: Pipeline) -> Iterator[Any]:
    """AUTOTUNE everywhere."""
    import numpy
    import tensorflow as tf

    first = pipeline(0)
    types = [*_types(pipeline), tf.as_dtype(numpy.asarray(first).dtype)]
    data = tf.data.Dataset.range(pipeline.items)
    for stage, kind in zip(pipeline.stages, types, strict=True):
        data = data.map(
            functools.partial(_called, stage, kind), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
    if pipeline.name == "heavier":  # shapes change on the way, and batches never mix them
        yield data.batch(pipeline.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    else:
        yield data.batch(pipeline.batch).prefetch(tf.data.AUTOTUNE)


def _types(pipeline: Pipeline) -> list[Any]:
    import tensorflow as tf

    found: Any = 0
    types = []
    for stage in pipeline.stages[:-1]:
        found = stage(found)
        types.append(tf.string if isinstance(found, bytes) else tf.int64)
    return types


def _called(stage: Callable[[Any], Any], kind: Any, item: Any) -> Any:
    import numpy
    import tensorflow as tf

    def call(value: Any) -> Any:
        found = stage(value)
        return numpy.int64(found) if isinstance(found, int) else found

    return tf.numpy_function(call, [item], kind)


@contextlib.contextmanager
def ray_data(pipeline: Pipeline) -> Iterator[Any]:
    """A map for each stage, on all cores of this machine."""
    import ray
    import ray.data

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, logging_level="error")
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    # Its blocks hold rows, of which a few hundred at a time make a task.
    items = 4_000_000 if pipeline.name == "small" else 400_000
    data = ray.data.range(items, override_num_blocks=items // (4096 if pipeline.name == "small" else 64))
    for number, stage in enumerate(pipeline.stages):
        data = data.map(functools.partial(_row, stage, "id" if number == 0 else "item"))
    try:
        yield data.iter_batches(batch_size=pipeline.batch, prefetch_batches=4)
    finally:
        ray.shutdown()


def _row(stage: Callable[[Any], Any], column: str, row: dict[str, Any]) -> dict[str, Any]:
    return {"item": stage(row[column])}


PEERS: dict[str, tuple[Callable[[Pipeline], contextlib.AbstractContextManager[Any]], ...]] = {
    "torchdata.nodes": (torchdata_nodes,),
    "SPDL": (spdl,),
    "Grain": (grain, functools.partial(grain, processes=2)),
    "tf.data": (tf_data,),
    "Ray Data": (ray_data,),
}
"""How each is set up; of several ways the best counts."""


def main() -> None:
    """One peer, here."""
    peer, name, seconds, warm_seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    pipeline = PIPELINES[name]
    best = 0.0
    for setup in PEERS[peer]:
        with setup(pipeline) as batches:
            best = max(best, steady_rate(batches, pipeline, warm_seconds=warm_seconds, seconds=seconds))
    print(json.dumps({"rate": best}), flush=True)
    os._exit(0)  # threads and processes of others may not end by themselves


if __name__ == "__main__":
    main()
