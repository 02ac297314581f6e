"""Networks for images of 3 x 32 x 32 (CIFAR), as in experiments on GPU sharing."""

from collections.abc import Callable

import torch
from torch import nn

VGG = {
    "vgg11": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "vgg16": (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    "vgg19": (
        *(64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0),
        *(512, 512, 512, 512, 0, 512, 512, 512, 512, 0),
    ),
}
CLASSES = 10


def vgg(name: str) -> nn.Module:
    """Return a VGG with batch normalisation: widths of convolutions, 0 halves the image."""
    layers: list[nn.Module] = []
    channels = 3
    for width in VGG[name]:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, CLASSES))


def mobilenet() -> nn.Module:
    """Return MobileNet (version 1): depthwise and pointwise convolutions."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for width, stride in (
        *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
        *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
    ):
        layers += [
            nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, width, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        channels = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


class Fire(nn.Module):
    """A block of SqueezeNet: narrow, then wide with two sizes of kernels."""

    def __init__(self, channels: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(channels, narrow, 1)
        self.wide1 = nn.Conv2d(narrow, wide, 1)
        self.wide3 = nn.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return twice ``wide`` channels of the same size."""
        narrow = torch.relu(self.narrow(images))
        return torch.relu(torch.cat([self.wide1(narrow), self.wide3(narrow)], 1))


def squeezenet() -> nn.Module:
    """Return SqueezeNet 1.1 with a first layer for small images."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(Fire(64, 16, 64), Fire(128, 16, 64), nn.MaxPool2d(2)),
        *(Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(2)),
        *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
        *(nn.Conv2d(512, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vgg11": lambda: vgg("vgg11"),
    "vgg16": lambda: vgg("vgg16"),
    "vgg19": lambda: vgg("vgg19"),
    "mobilenet": mobilenet,
    "squeezenet": squeezenet,
}
