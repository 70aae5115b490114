"""The options of image classification (`workloads/train_timm.py`)."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.model_options import GPU_ONLY_PX, NO_GPU, SHARES_DROPOUT, DataSource, Precision, StepMode, Training
from workloads.options import PLACE, Device, option

Dataset = enum.Enum("Dataset", "digits cifar10 imagenet64 imagenet", start=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The properties of a data set.

    Attributes:
        native_px: height and width of the images; `None` if sizes vary.
        mean, std: mean and standard deviation of each channel, with pixel values from 0 to 1.
        flips: whether a mirrored image still belongs to its class.
        folder: folder of the published files, below `data_root`; `None` if a package contains the files.
    """

    native_px: int | None
    train_samples: int
    validation_samples: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flips: bool
    folder: str | None


# Sources of means and standard deviations: for ImageNet, torchvision's reference weights; for CIFAR-10, its training
# images.
_IMAGENET = Facts(
    native_px=None,
    train_samples=1_281_167,
    validation_samples=50_000,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    flips=True,
    folder="imagenet",
)
FACTS = {
    Dataset.digits: Facts(
        native_px=None,
        train_samples=1500,
        validation_samples=297,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        flips=False,
        folder=None,
    ),
    Dataset.cifar10: Facts(
        native_px=32,
        train_samples=50_000,
        validation_samples=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        flips=True,
        folder="cifar-10-batches-py",
    ),
    Dataset.imagenet64: dataclasses.replace(_IMAGENET, native_px=64, folder="imagenet64"),
    Dataset.imagenet: _IMAGENET,
}


Recipe = enum.Enum("Recipe", "plain timm", start=0)
Autotune = enum.Enum("Autotune", "auto in_turn together off", start=0)

TINY_RESNET = {"layers": [1, 1, 1, 1], "channels": [64, 128, 256, 512], "stem_chs": 32, "stem_type": ""}
# From these sources, the loader decodes image files and crops them to any size.
_IMAGE_FILES = (DataSource.files, DataSource.synthetic_files)
_MOST_IN_A_BATCH = 32  # limits of a rehearsal: a step must be complete within the window, even on two busy cores


@dataclass(kw_only=True)
class TrainTimm(Training):
    """Train a model of timm on images."""

    script = "workloads/train_timm.py"
    preload = "workloads.timm_imports"

    model: str = option(help="name of the model in timm")
    model_args: dict[str, Any] = option({}, help="further arguments for timm's `create_model`")
    dataset: Dataset = option(help="data set")
    cache_root: str | None = option(
        None,
        path=PLACE,
        help="folder for converted data sets (default: the data set's folder) and synthetic files (default: the user's "
        "cache)",
    )
    image_px: int = option(
        least=1,
        help="height and width in pixels; smaller images are scaled up on the device, image files are cropped",
    )
    num_classes: int = option(least=1, help="number of classes")
    samples: int | None = option(
        None,
        least=1,
        help="training samples per epoch of synthetic data; `null`: as many as in the real data set",
    )
    recipe: Recipe = option(
        Recipe.plain,
        help="loss, optimiser, learning rate, and when the host reads the loss ([workloads.md](workloads.md#recipes))",
    )
    learning_rate: float | None = option(None, help="learning rate of the first epoch; `null`: from the recipe")
    channels_last: bool = option(True, help="use the channels-last memory format")
    autotune: Autotune = option(
        Autotune.auto,
        help="when cuDNN tunes its algorithms: job after job, in all jobs at once, or never; `auto` is `in_turn` with "
        "`precision=fp32`, else `off` ([method.md](method.md))",
    )

    def derive_values(self) -> Mapping[str, object]:
        if self.autotune is not Autotune.auto:
            return {}
        return {"autotune": Autotune.in_turn if self.precision is Precision.fp32 else Autotune.off}

    def explain_own_process(self) -> str:
        drops = any("drop" in key and rate for key, rate in self.model_args.items())
        if drops and self.step_mode is not StepMode.cuda_graph:
            return SHARES_DROPOUT
        return super().explain_own_process()

    def check(self, device: Device) -> None:
        super().check(device)
        if self.dataset is Dataset.digits and self.source in _IMAGE_FILES:
            raise ValueError(
                f"source={self.source.name} needs image files, but the data set digits is an array in scikit-learn; "
                "use source=disk"
            )
        native_px = FACTS[self.dataset].native_px
        if self.source not in _IMAGE_FILES and native_px is not None and native_px > self.image_px:
            raise ValueError(
                f"image_px={self.image_px} is less than the {native_px} pixels of {self.dataset.name}, and images are "
                f"only scaled up; use image_px={native_px} or more"
            )
        if self.samples is not None and self.source in (DataSource.disk, DataSource.files):
            raise ValueError(
                f"samples={self.samples} is for synthetic data, but source={self.source.name} uses all samples; remove "
                "samples"
            )
        if self.image_px >= GPU_ONLY_PX and not device.is_gpu and not device.was_chosen:
            raise ValueError(
                f"image_px={self.image_px} is too large to train on CPUs unless gpu=cpu is set, and {NO_GPU}"
            )

    def check_data(self) -> None:
        made_up, folder = DataSource.synthetic_device, FACTS[self.dataset].folder
        if self.source is DataSource.files:
            made_up, folder = DataSource.synthetic_files, self.dataset.name
        if self.source in (DataSource.disk, DataSource.files) and folder is not None:
            remedy = f"data.source={made_up.name} to train on synthetic data of the same shape"
            self.find_folder(self.dataset.name, folder, remedy)

    def small(self) -> Tiny:
        return Tiny(batch_size=min(self.batch_size, _MOST_IN_A_BATCH))


@dataclass(kw_only=True)
class Tiny(TrainTimm):
    """Train a small ResNetv2 on handwritten digits: real training without a download."""

    name = "tiny"

    model: str = "resnetv2_50"
    model_args: dict[str, Any] = field(default_factory=lambda: dict(TINY_RESNET))
    dataset: Dataset = Dataset.digits
    image_px: int = 32
    num_classes: int = 10
    batch_size: int = 32
    learning_rate: float | None = 0.05
    channels_last: bool = False
    loader_workers: int = 0
    threads: int | None = 1
    warmup_steps: int = 3
    validate: bool = True
