"""The processes of an engine's workers, for tests that kill and stop them."""


def worker_pids(engine):
    """The process numbers of live workers by device; of workers under Ray, on their nodes."""
    found = {",".join(worker.devices): worker.process for worker in engine._workers.values()}
    return {devices: getattr(process, "pid", process) for devices, process in found.items()}
