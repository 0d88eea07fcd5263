"""Training with stages whose weights change under way, written down as what it is, on one device."""

import torch
from torch import nn
from torch.func import functional_call

from dovetail.feeds import Cursor
from dovetail.testing import programs
from dovetail.train.randomness import KeyedRandomness
from tests.train.pipeline.comparing import CPU


def recurrence(program, spans, *, version, rounds, steps, is_mean):
    """The losses, and the weights of each stage after each of its updates.

    Stage s is the layers `spans[s]` of a sequence. Microbatch b uses there the weights that `version(s, b)` updates
    have made, in forward and in backward; after each `rounds[s]` microbatches the sum, or mean, of their gradients,
    clipped by its norm, makes the next ones. Nothing else is known of time.
    """
    own = [programs.fresh(program).training for _ in spans]  # each stage has an optimizer and a schedule of its own
    parts = [each.model[span] for each, span in zip(own, spans, strict=True)]
    weights = [[_leaves(part)] for part in parts]
    random = [KeyedRandomness(each.model, seed=0, device=CPU) for each in own]
    cursor, losses, count = Cursor(own[0].batches, before_draw=random[0].before_batch), [], own[0].accumulate
    batch = []
    for b in range(steps * count):
        batch = batch if b % count else cursor.take(count)
        x, used = batch[b % count][0], [weights[s][version(s, b)] for s in range(len(spans))]
        for s, part in enumerate(parts):
            random[s].begin(b // count, b % count)
            x = functional_call(part, used[s], (x,))
        loss = nn.functional.mse_loss(x, batch[b % count][1])
        (loss if is_mean else loss / count).backward()
        losses.append(loss.detach())
        for s, (part, training) in enumerate(zip(parts, own, strict=True)):
            for name, parameter in part.named_parameters():
                found, used[s][name].grad = used[s][name].grad, None
                parameter.grad = found if parameter.grad is None else parameter.grad + found
            if (b + 1) % rounds[s] == 0:
                for parameter in part.parameters():
                    parameter.grad = parameter.grad / rounds[s] if is_mean and rounds[s] > 1 else parameter.grad
                if training.clip_norm is not None:
                    nn.utils.clip_grad_norm_(list(part.parameters()), training.clip_norm)
                training.optimizer.step()
                training.schedule.step()
                training.optimizer.zero_grad()
                weights[s].append(_leaves(part))
    means = [float(torch.stack(losses[b : b + count]).mean()) for b in range(0, len(losses), count)]
    return means, weights


def _leaves(part):
    return {name: parameter.detach().clone().requires_grad_() for name, parameter in part.named_parameters()}
