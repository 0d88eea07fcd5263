"""Running a model whole and in pieces, each fed only with what the one before gave, gradients passed by hand."""

import copy

import torch
from torch.utils import _pytree as pytree

from dovetail.train.cutting import capture_call, cut, equal, loss_given
from dovetail.train.cutting.recorder import untouched, watch
from dovetail.train.cutting.stage_assignment import layer_events
from dovetail.train.randomness import KeyedRandomness


def outcome(model, loss, extra=()):
    """All that a step learns by: the loss, every gradient and every buffer."""
    found = {f"grad {name}": each.grad for name, each in model.named_parameters()}
    found |= {f"buffer {name}": each.clone() for name, each in model.named_buffers()}
    return found | {"loss": loss.detach(), **dict(extra)}


def whole(model, loss, batch, *, seed=5):
    """A step of the model as it is."""
    model = copy.deepcopy(model)
    random = KeyedRandomness(model, seed=seed, device=torch.device("cpu"))
    random.begin(3, 1)
    found = loss(model, copy.deepcopy(batch))
    found.backward()
    random.close()
    return outcome(model, found)


def pieces(model, loss, batch, stages, *, seed=5, example=None):
    """The same step in pieces, as ranks that share nothing would take it."""
    model = copy.deepcopy(model)
    random = KeyedRandomness(model, seed=seed, device=torch.device("cpu"))
    random.begin(9, 9)  # cutting must not depend on where random numbers stand, nor move them
    made = cut(model, capture_call(loss, model, copy.deepcopy(batch if example is None else example)), stages=stages)
    call = capture_call(loss, model, copy.deepcopy(batch))
    values, kept, marks = made.inputs(call), [], []
    for number, piece in enumerate(made.pieces):
        assert set(piece.takes) == set(values), (piece.takes, list(values))
        if number:
            values = {
                n: v.detach().clone(memory_format=torch.contiguous_format).requires_grad_(piece.likes[n].requires_grad)
                for n, v in values.items()
            }
        random.begin(3, 1)
        marks.append(random.mark())
        given = piece(values, call=call if example is not None else None)
        assert set(piece.gives) == set(given)
        kept.append((values, given))
        values = given
    found = loss_given(loss, model, copy.deepcopy(batch), values["output"])
    found.backward()
    for number in reversed(range(len(made.pieces) - 1)):
        (_, given), (arrived, _) = kept[number], kept[number + 1]
        pairs = [(given[n], v.grad) for n, v in arrived.items() if v.grad is not None]
        assert all(tensor.requires_grad for tensor, _ in pairs)
        for name in made.pieces[number].names.keys() & made.shared.keys():  # what later pieces found, first
            parameter = made.pieces[number].names[name]
            if parameter.grad is not None:
                pairs.append((parameter, parameter.grad))
                parameter.grad = None
        random.return_to(marks[number])  # for what is computed again in backward
        if pairs:
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
    random.close()
    return outcome(model, found), made


def apart(model, loss, batch, stages):
    """The same with a model for each piece, all of whose other tensors are no numbers: as on ranks of their own."""
    models = [copy.deepcopy(model) for _ in stages]
    randoms = [KeyedRandomness(each, seed=5, device=torch.device("cpu")) for each in models]
    calls = [capture_call(loss, each, copy.deepcopy(batch)) for each in models]
    cuts = [cut(each, call, stages=stages) for each, call in zip(models, calls, strict=True)]
    ranks = [made.pieces[number] for number, made in enumerate(cuts)]
    for each, piece in zip(models, ranks, strict=True):
        own = {id(tensor) for tensor in (*piece.parameters(), *piece.buffers())}
        for tensor in (*each.parameters(), *each.buffers()):
            if id(tensor) not in own and tensor.is_floating_point():
                tensor.data.fill_(torch.nan)
    values, kept = cuts[0].inputs(calls[0]), []
    for number, piece in enumerate(ranks):
        if number:
            values = {
                n: v.detach().clone(memory_format=torch.contiguous_format).requires_grad_(piece.likes[n].requires_grad)
                for n, v in values.items()
            }
        randoms[number].begin(3, 1)
        kept.append((values, values := piece(values)))
    found = {"loss": loss_given(loss, models[-1], copy.deepcopy(batch), values["output"])}
    for number in reversed(range(len(ranks))):
        if number == len(ranks) - 1:
            found["loss"].backward()
        else:
            given, arrived = kept[number][1], kept[number + 1][0]
            pairs = [(given[n], v.grad) for n, v in arrived.items() if v.grad is not None]
            theirs = {name: found.get(f"grad {name}") for name in ranks[number].names}
            pairs += [(ranks[number].names[name], grad) for name, grad in theirs.items() if grad is not None]
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        found |= {f"grad {name}": each.grad for name, each in ranks[number].named_parameters()}
        found |= {f"buffer {name}": each for name, each in ranks[number].named_buffers()}
    for random in randoms:
        random.close()
    return found


def check_apart(model, loss, batch, count):
    """Pieces that share nothing give the bits of the whole."""
    stages = equal(model, capture_call(loss, model, copy.deepcopy(batch)), count)
    expected, found = whole(model, loss, batch), apart(model, loss, batch, stages)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensor is found[name] or torch.equal(tensor, found[name]), name


def check(model, loss, batch, stages, **knobs):
    """The pieces give the bits of the whole."""
    expected = whole(model, loss, batch)
    found, made = pieces(model, loss, batch, stages, **knobs)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        other = found[name]
        same = (tensor is None) == (other is None) and (tensor is None or torch.equal(tensor, other))
        assert same, f"{name} differs by {None if tensor is None or other is None else (tensor - other).abs().max()}"
    named = {name for piece in made.pieces for name, _ in (*piece.named_parameters(), *piece.named_buffers())}
    assert named == {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return made


def layers(model, call):
    """Names of the model's layers in the order of their calls, as profiles have them, without joins."""
    with untouched(model):
        return tuple(event.name for event in layer_events(watch(model, call)[0]))


def check_all(model, loss, batch, counts=None):
    """At every number of stages, and with every layer's output as the one cut."""
    call = capture_call(loss, model, copy.deepcopy(batch))
    names = layers(model, call)
    most = len(equal_names(model, call))
    for count in counts or range(1, most + 1):
        check(model, loss, batch, equal(model, call, min(count, most)))
    return names


def equal_names(model, call):
    """The layers that `equal` divides."""
    return equal(model, call, 1)[0]


def mean(model, batch):
    """A loss of every tensor in the output."""
    found = model(*batch) if isinstance(batch, tuple) else model(batch)
    tensors = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
    return sum((tensor.float() ** 2).mean() for tensor in tensors)
