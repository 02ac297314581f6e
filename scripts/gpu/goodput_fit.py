"""How exactly the throughput model predicts step times at batch sizes that it has not seen.

A convolutional network and a transformer are profiled on one device as gsched.elastic profiles a
new training: about ten batch sizes each, until one does not fit into memory. The model is fitted to
every second size, and predicts those between. Told are measured and predicted times of the forward
and backward pass, with the error of each and the mean error of those that were held out.

Without an NVIDIA GPU nothing is measured, unless --cpu asks for small sizes on one core.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gsched.elastic.adaptive.profiling import BatchProfile, Calls, Timed, profile, sizes_between
from gschedd.models.goodput.evaluation import step_times
from gschedd.models.goodput.fitting import fit
from gschedd.models.goodput.records import Observation

WORDS, LENGTH = 8192, 128


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images of the same shape, (batch, channels, height, width)."""
        return torch.relu(images + self.inner(images))


def convolutional(width: int) -> nn.Module:
    """Return a residual network for images of 32 x 32 and ten classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for stage in range(3):
        channels = width << stage
        layers += [Block(channels), Block(channels)]
        layers.append(nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


def transformer(width: int) -> nn.Module:
    """Return a language model for texts of 128 words."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
    return nn.Sequential(
        nn.Embedding(WORDS, width),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(width, WORDS),
    )


def measured(
    make: Callable[[int], nn.Module], width: int, inputs: torch.Tensor, sizes: Sequence[int]
) -> BatchProfile:
    """Return the times of a network's passes on the device of its inputs."""
    torch.manual_seed(1)
    model = make(width).to(inputs.device)
    calls = Calls(model)
    calls.begin(len(inputs))
    model(inputs)  # what it is called with is seen here
    return profile(model, calls, sizes)


def predicted(times: Sequence[Timed], sizes: Sequence[int]) -> list[float]:
    """Return what the model says of sizes, fitted to times; seconds."""
    parameters = fit(
        [
            Observation(
                gpu_type="this",
                nodes=1,
                gpus=1,
                batch_per_gpu=each.size,
                gradient_s=each.gradient_s,
                step_s=each.gradient_s,
            )
            for each in times
        ]
    ).parameters
    found = step_times(parameters, nodes=1, replicas=1, per_gpu=sizes)
    return [float(step_s) for step_s in found.step_s]


def report(name: str, found: BatchProfile) -> dict[str, Any]:
    """Print a network's times and errors, and return them."""
    times = sorted(found.times, key=lambda each: each.size)
    if len(times) < 4:
        print(f"{name}: {len(times)} batch sizes were measured, and 4 are needed: {found.fault}")
        return {"name": name, "sizes": len(times)}
    fitted, held_out = times[::2], times[1::2]
    guesses_s = predicted(fitted, [each.size for each in times])
    errors = {
        each.size: guess_s / each.gradient_s - 1
        for each, guess_s in zip(times, guesses_s, strict=True)
    }
    print(f"{name}: largest batch in memory: {found.limit or 'not reached'}")
    print("    batch   measured ms  predicted ms   error %")
    for each, guess_s in zip(times, guesses_s, strict=True):
        mark = "" if each in fitted else "  held out"
        print(
            f"{each.size:9}{each.gradient_s * 1e3:14.3f}{guess_s * 1e3:14.3f}"
            f"{errors[each.size] * 100:10.1f}{mark}"
        )
    mean = statistics.mean(abs(errors[each.size]) for each in held_out)
    worst = max(abs(errors[each.size]) for each in held_out)
    print(f"  held out: mean error {mean * 100:.1f} %, largest {worst * 100:.1f} %")
    return {
        "name": name,
        "times_s": {each.size: each.gradient_s for each in times},
        "predicted_s": dict(zip((each.size for each in times), guesses_s, strict=True)),
        "held_out_mean_error": mean,
        "held_out_largest_error": worst,
        "limit": found.limit,
    }


def main() -> int:
    """Measure, fit and print; 1: there is no device for it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="small sizes on one core")
    parser.add_argument("--json", help="write the figures into this file, too")
    args = parser.parse_args()
    if not args.cpu and not torch.cuda.is_available():
        print("no NVIDIA GPU here: run this where there is one, or with --cpu", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    device = torch.device("cpu" if args.cpu else "cuda")
    tuned, most, width = (16, 64, 8) if args.cpu else (64, 16384, 64)
    texts_tuned, texts_most, texts_width = (16, 32, 64) if args.cpu else (32, 4096, 512)
    images = torch.randn(tuned, 3, 32, 32, device=device)
    texts = torch.randint(0, WORDS, (texts_tuned, LENGTH), device=device)
    print(f"device: {'CPU, one core' if args.cpu else torch.cuda.get_device_name(device)}")
    found = [
        report(
            "convolutional network",
            measured(convolutional, width, images, sizes_between(tuned, most)),
        ),
        report(
            "transformer",
            measured(transformer, texts_width, texts, sizes_between(texts_tuned, texts_most)),
        ),
    ]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
