"""The workloads as published: the networks of the study, and every setting of its program."""

from __future__ import annotations

import pytest
import torch

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader
from workloads.images.options import Autotune, Recipe
from workloads.images.vision import import_torchvision
from workloads.model_options import DataSource, Precision

# Millions of parameters at 1000 classes, data set, pixels, batch size.
PUBLISHED = {
    "robroek_small": (16.0, "cifar10", 32, 128),
    "robroek_medium": (25.6, "imagenet64", 64, 128),
    "robroek_large": (60.2, "imagenet", 224, 32),
    "robroek_efficientnetv2_s_small": (21.5, "cifar10", 32, 128),
    "robroek_efficientnetv2_s_medium": (21.5, "imagenet64", 64, 128),
    "robroek_efficientnetv2_s_large": (21.5, "imagenet", 288, 128),
    "robroek_cait_large": (12.0, "imagenet", 224, 128),
}


def test_each_has_its_file():
    files = (PROJECT_DIR / "conf" / "workload").glob("robroek_*.yaml")
    assert {file.stem for file in files} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_the_network_of_the_study_at_the_settings_of_its_program(compose, name):
    (config,) = config_reader.read(compose([f"workload={name}", "data.source=files"]))
    workload = config.workload
    millions, *settings = PUBLISHED[name]
    assert [workload.dataset.name, workload.image_px, workload.batch_size] == settings
    assert (workload.name, workload.num_classes, workload.source) == (name, 1000, DataSource.files)
    assert (workload.recipe, workload.precision) == (Recipe.timm, Precision.tf32)
    assert (workload.loader_workers, workload.autotune) == (4, Autotune.together)
    assert (workload.channels_last, workload.learning_rate, workload.validate) == (False, None, True)
    import_torchvision()
    import timm

    with torch.device("meta"):
        model = timm.create_model(workload.model, num_classes=workload.num_classes, **workload.model_args)
        images = torch.empty(2, 3, workload.image_px, workload.image_px)
        assert model(images).shape == (2, 1000)
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == millions
