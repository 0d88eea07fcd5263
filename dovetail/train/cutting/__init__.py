"""Cutting a model into pieces that run one after another, with the bits of the whole.

    call = capture_call(training.loss, model, batch)           # what the program's loss calls the model with
    made = cut(model, call, stages=(("0", "1"), ("2",)))        # layer names as in Profile.layers / knobs["stages"]
    made = cut(model, call, stages=equal(model, call, 3))       # or so many stages of about as many layers
    values = made.inputs(call)                                  # {name: tensor}: made.pieces[0].takes
    for piece in made.pieces:
        values = piece(values)                                  # {name: tensor}: piece.gives
    loss = loss_given(training.loss, model, batch, values["output"])

Rules for whoever runs pieces:

* Every piece runs the original model's own code and modules (with its parameters and buffers as they are in the model
  at that moment, so `weights.StandIns` in the model work), skipping what belongs to other pieces. Training flags are
  the model's. Pieces of one model must not run at the same time in several threads.
* What crosses is always tensors. A value that a later piece needs is relayed: it is in `takes` and `gives` of the
  pieces between. One named "random" (bytes, on the host) is where torch's generators stand, for what is drawn between
  modules. Values and gradients may travel packed; pieces lay them out in memory as the whole has them.
* Detach what arrives and set `requires_grad_(like.requires_grad)`; after backward, its `.grad` goes back. It may be
  None where later pieces did not use it differentiably: hand on None, never zeros (a parameter would get a gradient).
  All values that arrive with `requires_grad` go into ONE `torch.autograd.backward(gives, gradients)` of the piece that
  gave them, so that sums have the order of the whole.
* Call `KeyedRandomness.begin(step, microbatch)` before EVERY forward of a piece (again when recomputing); modules
  called in several pieces then draw what they would in the whole.
* A parameter in `Cut.shared` is the same object in each of these pieces (in one process). For the bits of the whole,
  the gradient that later pieces found for a microbatch is one more root of the earlier piece's backward:
  `torch.autograd.backward([*gives, parameter], [*gradients, theirs])`, with `parameter.grad` None before; so it is
  summed in the order of the whole, microbatch by microbatch. (Summed at the step's end it is equal up to rounding.)
* Shapes may vary by step: then give each piece but the first the microbatch's `call` too (only sizes are read from it,
  captured on that rank's own copy of the batch): `piece(values, call=call)`.
* Cut within what training runs within (autocast, training mode), with the model where its inputs are; then move each
  piece. Cutting takes one forward and backward of the whole model and one forward in pieces, on the example call.
* All refusals are `TechniqueRefused` with a reason that names the operation.

How it works: `recorder` watches one real run of the model (every operation of torch's outside torch's own modules,
every call of a module, what flows between them), `stage_assignment` places each of these in a stage, `replay_plan` says
what each stage runs, passes over or goes inside of, and `traced_piece` follows that through the model's own code, with
`absent` tensors that only know their shape for what other stages have. Nothing is traced into another program, so
Python, hooks, module paths, buffers and modes work as they do in the whole, and a stage leaves the code after its last
operation.
"""

from dovetail.train.cutting.cutter import cut, equal
from dovetail.train.cutting.model_calls import ModelCall, capture_call, loss_given
from dovetail.train.cutting.pieces import Cut, Like, Piece

__all__ = ["Cut", "Like", "ModelCall", "Piece", "capture_call", "cut", "equal", "loss_given"]
