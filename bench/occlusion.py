"""Occlusion maps by `dt.occlusion`, beside asking the whole model for every covered picture.

`python bench/occlusion.py [vgg16] [resnet18] [--quick] [--check]`

VGG16 and ResNet-18, built as published with random weights and norms that have seen pictures, at 224 x 224, a square of
16 cells at every 16th place (196 covered pictures) and, for VGG16, which takes eight times as long, at every 32nd (49);
on a CUDA device at every 4th (2809), as fine a map as Krypton's. What a user would write instead asks for 16 of them at
a time, or 64 on a device. On a CPU, seconds of CPU on one thread, medians of three by turns; on a CUDA device, seconds.
`whole` is one call of `dt.occlusion` from nothing, exporting the model included; `again` is the same for one more
picture, of a model that was exported before (`dt.incremental`). `--quick` takes small pictures and writes nothing.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from reporting import Bar, finish
from torch import nn
from torch.nn import functional

import dovetail as dt

PATCH = 16
STRIDE = {"cpu": {"vgg16": 32, "resnet18": 16}, "cuda": {"vgg16": 4, "resnet18": 4}}
ROUNDS = 3
AT_ONCE = {"cpu": 16, "cuda": 64}
WORST_ERROR = 1e-5
TIMES = {"cpu": {"vgg16": 4.0, "resnet18": 2.5}, "cuda": {"vgg16": 3.0, "resnet18": 3.0}}


class BasicBlock(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.second, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        short = [nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.short = nn.Sequential(*short) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.first(x)), inplace=True)
        return functional.relu(self.norm2(self.second(y)) + self.short(x), inplace=True)


def resnet18() -> nn.Module:
    """He and others, 2015."""
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [BasicBlock(*each) for each in [*sizes, (512, 512, 1)]]
    begin = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*begin, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def vgg16() -> nn.Module:
    """Simonyan and Zisserman, 2014."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    dense = [nn.Linear(25088, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *dense, nn.Dropout(), nn.Linear(4096, 1000))


MODELS = {"vgg16": vgg16, "resnet18": resnet18}


@torch.no_grad()
def by_hand(model: nn.Module, image: torch.Tensor, target: int, stride: int) -> torch.Tensor:
    """The score of each covered picture, some at a time."""
    rows, columns = (range(0, length - PATCH + 1, stride) for length in image.shape[-2:])
    places = [(top, left) for top in rows for left in columns]
    scores = []
    at_once = AT_ONCE[image.device.type]
    for start in range(0, len(places), at_once):
        part = places[start : start + at_once]
        pictures = image.repeat(len(part), 1, 1, 1)
        for picture, (top, left) in zip(pictures, part, strict=True):
            picture[:, top : top + PATCH, left : left + PATCH] = 0
        scores.append(model(pictures)[:, target])
    return torch.cat(scores).view(len(rows), len(columns))


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds of CPU, or on an accelerator seconds, and what the work gave."""
    if device == "cpu":
        began = time.process_time()
        found = work()
        return time.process_time() - began, found
    torch.cuda.synchronize()
    began = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    return time.perf_counter() - began, found


def measure(name: str, build: Callable[[], nn.Module], device: str, size: int, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    stride = STRIDE[device][name]
    torch.manual_seed(0)
    model = build().to(device)
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 3, size, size, device=device))  # norms see pictures
    model.eval()
    image = torch.randn(1, 3, size, size, device=device)
    target = int(model(image)[0].argmax())
    traced = dt.incremental(model, torch.randn_like(image))
    plain, whole, again = [], [], []
    error = 0.0
    for _ in range(rounds):
        seconds, scores = timed(lambda: by_hand(model, image, target, stride), device)
        plain.append(seconds)
        seconds, found = timed(lambda: dt.occlusion(model, image, patch=PATCH, stride=stride), device)
        whole.append(seconds)
        seconds, second = timed(lambda: dt.occlusion(traced, image, patch=PATCH, stride=stride), device)
        again.append(seconds)
        print(name, *(f"{way[-1]:.2f} s" for way in (plain, whole, again)), file=sys.stderr)
        for each in (found, second):
            apart = (each.score - each.drops - scores).abs().max() / scores.abs().max()
            error = max(error, float(apart))
    middle = {"by hand": plain, "whole": whole, "again": again}
    seconds_of = {way: statistics.median(times) for way, times in middle.items()}
    return {
        "row": f"{name} on {device}",
        "places": found.drops.numel(),
        **{f"{way}, s": round(seconds, 3) for way, seconds in seconds_of.items()},
        "times, whole": seconds_of["by hand"] / seconds_of["whole"],
        "times, again": seconds_of["by hand"] / seconds_of["again"],
        "multiplications": found.share,
        "error": error,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="small pictures; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.models) - set(MODELS):
        arguments.error(f"MODEL must be one of {', '.join(MODELS)}, got {', '.join(sorted(unknown))}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # so that both can be compared to the sixth digit
    size, rounds = (96, 1) if chosen.quick else (224, ROUNDS)
    code = 0
    for name in ["resnet18"] if chosen.quick else chosen.models:
        row, least = measure(name, MODELS[name], device, size, rounds), TIMES[device][name]
        bars = [
            Bar(f"{row['row']}, times less than by hand, again", row["times, again"], least=least),
            Bar(f"{row['row']}, times less than by hand, whole", row["times, whole"], least=least),
            Bar(f"{row['row']}, relative error", row["error"], most=WORST_ERROR),
        ]
        code |= finish("occlusion", [row], bars, check=chosen.check, quick=chosen.quick, part_by="row")
    sys.exit(code)


if __name__ == "__main__":
    main()
