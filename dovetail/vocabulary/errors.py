"""What can go wrong, as users meet it. Every message says what must hold, what was found, what to do.

`DovetailError` and its children are for users. Our own mistakes are `assert`s.
"""


class DovetailError(Exception):
    """Anything Dovetail refuses or could not do, with a message for the user.

    >>> issubclass(InvalidWorkload, DovetailError) and issubclass(InvalidWorkload, ValueError)
    True
    """


class InvalidRecord(DovetailError, ValueError):
    """Data that does not have the shape of the record it was read as.

    >>> issubclass(InvalidRecord, ValueError)
    True
    """


class InvalidWorkload(DovetailError, ValueError):
    """A workload, task, parameter or stopping rule that cannot be.

    >>> issubclass(InvalidWorkload, ValueError)
    True
    """


class ProgramError(DovetailError):
    """A program that cannot be imported, raises, or does not build a `Training`.

    >>> issubclass(ProgramError, DovetailError)
    True
    """


class TrainingError(DovetailError):
    """Training that cannot go on: a loss that is not finite, a batch the model rejects. `dt.run` raises it when all is
    done and tasks have failed, with their reasons; `dt.open_result` then gives what the others came to.

    >>> try:
    ...     raise TrainingError("1 of 6 tasks has failed: 'line lr=10': the loss must be finite, got nan at step 3.")
    ... except DovetailError as error:
    ...     print(str(error).partition(":")[0])
    1 of 6 tasks has failed
    """


class TechniqueRefused(DovetailError):
    """A technique that cannot run this training exactly, with the reason.

    >>> issubclass(TechniqueRefused, DovetailError)
    True
    """


class CheckpointError(DovetailError):
    """A checkpoint that is incomplete, altered, or could not be written.

    >>> issubclass(CheckpointError, DovetailError)
    True
    """


class StoreError(DovetailError):
    """A store that cannot be opened, read or written.

    >>> issubclass(StoreError, DovetailError)
    True
    """


class StoreRefused(StoreError):
    """A store that takes nothing for now: its disk is full, or somebody else holds it. It may take more later.

    >>> issubclass(StoreRefused, StoreError)
    True
    """


class StoreBusy(StoreError):
    """Another controller holds this store.

    >>> issubclass(StoreBusy, StoreError)
    True
    """


class NoFeasiblePlan(DovetailError):
    """Tasks that no option fits, each named with the reason.

    >>> issubclass(NoFeasiblePlan, DovetailError)
    True
    """


class InvalidSchedule(DovetailError):
    """A schedule that breaks a law; it is never started.

    >>> issubclass(InvalidSchedule, DovetailError)
    True
    """
