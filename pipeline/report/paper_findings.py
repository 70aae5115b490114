"""What the paper that this project reproduces says, as ranges. Data, to be read beside it.

Source: Robroek, Yousefzadeh-Asl-Miandoab, Tozun, arXiv 2209.06018: one A100-40GB of a DGX Station, 5 epochs from disk,
no repeats. What others report of its later version is marked as second-hand. Where the paper gives words instead of
numbers ("little", "about the time of one"), the range is how this project reads them, and the text says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report import labels
from pipeline.report.metrics import SPEEDUP

GPU = "A100-SXM4-40GB"
SMALL, MEDIUM, LARGE = "resnet26_cifar10", "resnet50_imagenet64", "resnet152_imagenet"
EFFICIENTNET = tuple(f"efficientnetv2_s_{dataset}" for dataset in ("cifar10", "imagenet64", "imagenet"))
CAIT = "cait_xxs24_imagenet"
WORKLOADS = (SMALL, MEDIUM, LARGE, *EFFICIENTNET, CAIT)

EPOCH, GRACT = "epoch_time_vs_solo_ratio", "gract_mean_ratio"
MEMORY_GROWTH = "memory_against_degree_times_solo_ratio"
AGAINST_NAIVE, AGAINST_MIG = "speed_against_naive_ratio", "speed_against_mig_ratio"
OOM, BEST_MODE = "oom", "best_mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement of the paper about a number.

    Attributes:
        workloads: names of the workloads that it is about.
        mixes: labels of the mixes that it is about, instead of workloads.
        batch_size: `None` for any.
        degree: `None` for any that collocates.
        families: kinds of sharing.
        metric: a quantity of a cell, or one of the ratios that `pipeline.report.paper` takes between cells.
        low, high: range of the metric; `None` is open.
        profile: of MIG instances, by slices; `None` for any.
        is_first_hand: whether it stands in the paper itself.
    """

    text: str
    metric: str
    families: tuple[str, ...]
    workloads: tuple[str, ...] = WORKLOADS
    mixes: tuple[str, ...] = ()
    batch_size: int | None = None
    degree: int | None = None
    low: float | None = None
    high: float | None = None
    profile: str | None = None
    is_first_hand: bool = True

    @property
    def range_in_words(self) -> str:
        """`1.05 to 1.12`, `up to 1.8`, `oom`."""
        if self.metric == BEST_MODE:
            return "fastest: " + " or ".join(self.families)
        if self.metric == OOM:
            return "out of memory"
        if self.low is None:
            return f"up to {self.high:g}"
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"


_SHARED = (labels.MPS, labels.MIG)
_ALONE = (labels.SERIAL,)
_COLLOCATED = (labels.NAIVE, labels.MPS, labels.MIG)

_WITH_LARGE = ("L+S", "L+2S", "L+3S", "L+M", "L+M+S", "L+2M", "L+M+2S", "L+M+3S")

FINDINGS: tuple[Finding, ...] = (
    Finding(
        text="MPS with a single job costs little (read as: at most 5 % either way)",
        metric=SPEEDUP,
        families=(labels.MPS,),
        degree=1,
        low=0.95,
        high=1.05,
    ),
    Finding(
        text="a 7g instance with a single job costs little (read as: at most 5 % either way)",
        metric=SPEEDUP,
        families=(labels.MIG,),
        degree=1,
        profile="7g",
        low=0.95,
        high=1.05,
    ),
    Finding(
        text="a 4g instance slows medium and large models (read as: by more than 5 %)",
        metric=SPEEDUP,
        families=(labels.MIG,),
        degree=1,
        profile="4g",
        workloads=(MEDIUM, LARGE),
        high=0.95,
    ),
    Finding(
        text="two small or medium models take about the time of one (read as: up to 15 % more)",
        metric=EPOCH,
        families=_SHARED,
        degree=2,
        workloads=(SMALL, MEDIUM),
        low=0.95,
        high=1.15,
    ),
    Finding(
        text="time per epoch of three ResNets at batch 32: 5 to 12 % more than of one",
        metric=EPOCH,
        families=_SHARED,
        degree=3,
        workloads=(SMALL, MEDIUM),
        batch_size=32,
        low=1.05,
        high=1.12,
    ),
    Finding(
        text="time per epoch of three ResNets at batch 128: 50 to 160 % more than of one",
        metric=EPOCH,
        families=_SHARED,
        degree=3,
        workloads=(SMALL, MEDIUM),
        batch_size=128,
        low=1.5,
        high=2.6,
    ),
    Finding(
        text="time per epoch of three EfficientNets: 40 to 90 % more than of one",
        metric=EPOCH,
        families=_SHARED,
        degree=3,
        workloads=EFFICIENTNET[:2],
        batch_size=128,
        low=1.4,
        high=1.9,
    ),
    Finding(
        text="time per epoch of seven small models: 60 to 80 % more than of one",
        metric=EPOCH,
        families=_SHARED,
        degree=7,
        workloads=(SMALL,),
        low=1.6,
        high=1.8,
    ),
    Finding(
        text="throughput of seven small models: 3.9 to 4.4 times that of one",
        metric=SPEEDUP,
        families=_SHARED,
        degree=7,
        workloads=(SMALL,),
        low=3.9,
        high=4.4,
    ),
    Finding(
        text="large models gain nothing by sharing (read as: at most 10 % either way)",
        metric=SPEEDUP,
        families=_COLLOCATED,
        workloads=(LARGE, CAIT),
        low=0.9,
        high=1.1,
    ),
    Finding(
        text="seven large models run out of memory",
        metric=OOM,
        families=_COLLOCATED,
        degree=7,
        workloads=(LARGE, CAIT, EFFICIENTNET[2]),
    ),
    Finding(
        text="ResNet152 at batch 128 and EfficientNet on ImageNet run out of memory already in pairs",
        metric=OOM,
        families=_COLLOCATED,
        degree=2,
        workloads=(LARGE, EFFICIENTNET[2]),
        batch_size=128,
    ),
    Finding(
        text="memory grows in proportion to the degree, a little less under MIG (read as: 0.8 to 1.1 times it)",
        metric=MEMORY_GROWTH,
        families=_COLLOCATED,
        low=0.8,
        high=1.1,
    ),
    Finding(
        text="GRACT of one small model at batch 128: about 60 % (read as: 55 to 65 %)",
        metric=GRACT,
        families=_ALONE,
        degree=1,
        workloads=(SMALL,),
        batch_size=128,
        low=0.55,
        high=0.65,
    ),
    Finding(
        text="GRACT of one medium model at batch 128: about 80 % (read as: 75 to 85 %)",
        metric=GRACT,
        families=_ALONE,
        degree=1,
        workloads=(MEDIUM,),
        batch_size=128,
        low=0.75,
        high=0.85,
    ),
    Finding(
        text="GRACT of one large model: near 100 % (read as: at least 95 %)",
        metric=GRACT,
        families=_ALONE,
        degree=1,
        workloads=(LARGE, CAIT),
        low=0.95,
    ),
    Finding(
        text="MPS gains up to 80 % over naive sharing (read as: 1 to 1.8 times)",
        metric=AGAINST_NAIVE,
        families=(labels.MPS,),
        low=1.0,
        high=1.8,
        is_first_hand=False,
    ),
    Finding(
        text="MPS gains up to 40 % over MIG (read as: 1 to 1.4 times)",
        metric=AGAINST_MIG,
        families=(labels.MPS,),
        low=1.0,
        high=1.4,
        is_first_hand=False,
    ),
    Finding(
        text="a medium model with one or two small ones is fastest without MIG",
        metric=BEST_MODE,
        families=(labels.NAIVE, labels.MPS),
        mixes=("M+S", "M+2S"),
    ),
    Finding(
        text="three medium models and a small one are fastest on MIG",
        metric=BEST_MODE,
        families=(labels.MIG,),
        mixes=("3M+S",),
    ),
    Finding(
        text="mixes with a large model gain little (read as: up to 15 %)",
        metric=SPEEDUP,
        families=(labels.NAIVE, labels.MPS),
        mixes=_WITH_LARGE,
        low=0.95,
        high=1.15,
    ),
    Finding(
        text="mixes with a large model are much slower on MIG (read as: by 10 % at least)",
        metric=AGAINST_NAIVE,
        families=(labels.MIG,),
        mixes=_WITH_LARGE,
        high=0.9,
    ),
)
"""In the order of the paper."""
