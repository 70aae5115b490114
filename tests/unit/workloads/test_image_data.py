"""Data sets in their true formats on disk, through the real readers and loaders."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.base.system.paths import PROJECT_DIR
from workloads.data.batches import TrainingData
from workloads.images import image_data
from workloads.images.image_files import read_cifar10, read_digits, read_imagenet64
from workloads.images.options import FACTS, Dataset, Tiny
from workloads.model_options import DataSource
from workloads.options import Device

CPU = torch.device("cpu")
OPENED: list[TrainingData] = []
DIGITS = Tiny(image_px=8, batch_size=100)


def open_data(options: Tiny, device: torch.device = CPU, seed: int = 1) -> TrainingData:
    """Check the options and open the data; `close_data` closes it."""
    options.check(Device(name="the CPUs", is_gpu=False))
    OPENED.append(image_data.open_data(options, seed, device))
    return OPENED[-1]


@pytest.fixture(autouse=True)
def close_data():
    yield
    while OPENED:
        OPENED.pop().close()


def write_batch(path: Path, px: int, labels: list[int], protocol: int = 2) -> np.ndarray:
    """Write one batch as the data sets' authors did; return its images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.random.default_rng(len(path.name)).integers(256, size=(len(labels), 3 * px * px), dtype=np.uint8)
    path.write_bytes(pickle.dumps({"data": data, "labels": labels, "mean": data.sum(0)}, protocol=protocol))
    return data.reshape(-1, 3, px, px)


def write_cifar10(root: Path, per_batch: int = 8) -> None:
    for number in range(1, 6):
        write_batch(root / "cifar-10-batches-py" / f"data_batch_{number}", 32, [number] * per_batch)
    write_batch(root / "cifar-10-batches-py" / "test_batch", 32, list(range(10)))


def write_imagenet64(root: Path) -> None:
    for number in range(1, 11):
        write_batch(root / "imagenet64" / f"train_data_batch_{number}", 64, [number, 1000])
    write_batch(root / "imagenet64" / "val_data", 64, [1, 2, 3])


def to_bytes(images: torch.Tensor, name: str) -> torch.Tensor:
    """Undo the normalisation."""
    mean, std = (
        torch.tensor(figures).view(1, 3, 1, 1) for figures in (FACTS[Dataset[name]].mean, FACTS[Dataset[name]].std)
    )
    return ((images * std + mean) * 255).round().to(torch.uint8)


def test_digits_are_split_once_and_for_all():
    split = read_digits(16)
    assert split.train.images.shape == (1500, 3, 16, 16)
    assert split.validation.images.shape == (297, 3, 16, 16)
    assert np.array_equal(split.train.labels, read_digits(8).train.labels)
    assert np.array_equal(split.train.images[:, :, ::2, 1::2], read_digits(8).train.images)
    assert split.train.images.max() == 255
    with pytest.raises(ValueError, match="multiple of 8"):
        read_digits(12)


@pytest.mark.parametrize("protocol", [2, 5])
def test_cifar10(tmp_path, protocol):
    write_cifar10(tmp_path)
    expected = write_batch(tmp_path / "cifar-10-batches-py" / "data_batch_2", 32, [7, 8], protocol)
    split = read_cifar10(tmp_path)
    assert split.train.labels.tolist() == [1] * 8 + [7, 8] + [3] * 8 + [4] * 8 + [5] * 8
    assert np.array_equal(split.train.images[8:10], expected)
    assert split.validation.labels.tolist() == list(range(10))


def test_missing_files_are_named_with_the_layout(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_4 do(es)? not exist; put data_batch_1"):
        read_cifar10(tmp_path)
    with pytest.raises(FileNotFoundError, match="train_data_batch_1 to train_data_batch_10 and val_data"):
        read_imagenet64(tmp_path, None)
    options = replace(DIGITS, dataset=Dataset.imagenet, data_root=tmp_path)
    with pytest.raises(FileNotFoundError, match="train/CLASS"):
        open_data(options, CPU)


class RunsCode:
    def __reduce__(self):
        return Path.touch, (Path("it_ran"),)


@pytest.mark.parametrize("content", [RunsCode(), {"data": RunsCode(), "labels": []}, {"data": eval, "labels": []}])
def test_a_data_file_cannot_run_code(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(content))
    with pytest.raises(pickle.UnpicklingError, match="which could run code"):
        read_cifar10(tmp_path)
    assert not Path("it_ran").exists()


@pytest.mark.parametrize("labels", [[], [-1]])
def test_a_batch_of_another_shape_is_refused(tmp_path, labels):
    write_cifar10(tmp_path)
    write_batch(tmp_path / "cifar-10-batches-py" / "data_batch_1", 32, labels, protocol=3)
    with pytest.raises(ValueError, match="data_batch_1"):
        read_cifar10(tmp_path)
    write_batch(tmp_path / "cifar-10-batches-py" / "data_batch_1", 16, [1])
    with pytest.raises(ValueError, match=r"instead of uint8 of shape \(1, 3072\)"):
        read_cifar10(tmp_path)


def test_imagenet64_is_converted_once_and_mapped_read_only(tmp_path):
    write_imagenet64(tmp_path)
    expected = write_batch(tmp_path / "imagenet64" / "train_data_batch_3", 64, [17])
    split = read_imagenet64(tmp_path, tmp_path / "cache")
    assert split.train.images.shape == (19, 3, 64, 64)
    assert np.array_equal(split.train.images[4:5], expected)
    assert split.train.labels.tolist()[:6] == [0, 999, 1, 999, 16, 3]
    assert split.validation.labels.tolist() == [0, 1, 2]
    assert isinstance(split.train.images, np.memmap) and not split.train.images.flags.writeable

    for source in (tmp_path / "imagenet64").iterdir():
        source.unlink()
    again = read_imagenet64(tmp_path, tmp_path / "cache")
    assert np.array_equal(again.train.images, split.train.images)


KILLED = """
import os, signal, sys
from pathlib import Path
from workloads.images import image_files
real, calls = image_files._read_batch, []
def read_six(path, **options):
    calls.append(path)
    if len(calls) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(path, **options)
image_files._read_batch = read_six
image_files.read_imagenet64(Path(sys.argv[1]), None)
"""


def test_a_killed_conversion_is_not_taken_for_a_result(tmp_path):
    write_imagenet64(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=PROJECT_DIR)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "imagenet64" / "imagenet64-npy.partial").is_dir()
    assert not (tmp_path / "imagenet64" / "imagenet64-npy").exists()
    assert len(read_imagenet64(tmp_path, None).train.labels) == 20
    assert not (tmp_path / "imagenet64" / "imagenet64-npy.partial").exists()


def test_jobs_that_start_together_convert_once(tmp_path):
    write_imagenet64(tmp_path)
    code = """
import logging, sys
from pathlib import Path
from workloads.images.image_files import read_imagenet64
logging.basicConfig(stream=sys.stdout, level="INFO", format="%(message)s")
print("begins", flush=True)
assert len(read_imagenet64(Path(sys.argv[1]), None).train.labels) == 20
"""
    with (tmp_path / "imagenet64" / "imagenet64-npy.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jobs = [
            subprocess.Popen([sys.executable, "-c", code, tmp_path], cwd=PROJECT_DIR, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        assert [job.stdout.readline() for job in jobs] == ["begins\n"] * 3
        time.sleep(0.3)  # longer than the conversion takes, which nobody may begin while the lock is held
        assert not list((tmp_path / "imagenet64").glob("imagenet64-npy*/"))
    outputs = [job.communicate(timeout=300)[0].splitlines() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    assert sorted(map(len, outputs)) == [0, 0, 11]


def test_an_epoch_is_a_function_of_seed_and_number():
    data = open_data(DIGITS, CPU).train
    begun = data.epoch(1)
    next(begun)  # an epoch that was begun and left, as in a warm-up
    labels = {
        (seed, number): torch.cat([batch[1] for batch in open_data(DIGITS, CPU, seed).train.epoch(number)])
        for seed in (1, 2)
        for number in (1, 2)
    }
    assert torch.equal(torch.cat([batch[1] for batch in data.epoch(1)]), labels[1, 1])
    assert len({tuple(order.tolist()) for order in labels.values()}) == 4
    assert torch.equal(labels[1, 1].sort().values, torch.from_numpy(np.sort(read_digits(8).train.labels)))


def test_loader_processes_change_nothing(tmp_path):
    write_cifar10(tmp_path)
    options = replace(DIGITS, dataset=Dataset.cifar10, data_root=tmp_path, image_px=32, batch_size=16)
    alone, helped = (open_data(replace(options, loader_workers=workers), CPU).train for workers in (0, 1))
    next(helped.epoch(1))
    for number in (1, 2):
        pairs = list(zip(alone.epoch(number), helped.epoch(number), strict=True))
        assert len(pairs) == alone.num_batches == 2  # of 40 images: the last 8 make no full batch
        for alone_batch, helped_batch in pairs:
            assert torch.equal(alone_batch[0], helped_batch[0]) and torch.equal(alone_batch[1], helped_batch[1])


def test_photos_are_mirrored_at_random_and_only_in_training(tmp_path):
    write_cifar10(tmp_path)
    files = read_cifar10(tmp_path)
    options = replace(DIGITS, dataset=Dataset.cifar10, data_root=tmp_path, image_px=32, batch_size=20)
    data = open_data(options, CPU)
    originals = {image.tobytes() for image in files.train.images}
    mirrored = {np.ascontiguousarray(image[:, :, ::-1]).tobytes() for image in files.train.images}
    seen = [image.numpy().tobytes() for images, _ in data.train.epoch(1) for image in to_bytes(images, "cifar10")]
    assert set(seen) <= originals | mirrored
    assert 8 <= len([image for image in seen if image in originals]) <= 32
    validation = torch.cat([to_bytes(images, "cifar10") for images, _ in data.validation.epoch(0)])
    assert np.array_equal(validation.numpy(), files.validation.images)


def test_images_are_scaled_up_to_the_nearest_pixel(tmp_path):
    write_cifar10(tmp_path)
    options = replace(DIGITS, dataset=Dataset.cifar10, data_root=tmp_path, image_px=96, batch_size=20)
    images, _ = next(iter(open_data(options, CPU).validation.epoch(0)))
    expected = read_cifar10(tmp_path).validation.images[:20].repeat(3, axis=2).repeat(3, axis=3)
    assert np.array_equal(to_bytes(images, "cifar10").numpy(), expected)
    with pytest.raises(ValueError, match="32 pixels"):
        open_data(replace(options, image_px=16), CPU)


@pytest.mark.parametrize("source", ["synthetic_host", "synthetic_device"])
def test_synthetic_images_of_a_small_data_set_are_scaled_up_too(source):
    options = replace(DIGITS, dataset=Dataset.cifar10, source=DataSource[source], image_px=96, batch_size=4, samples=8)
    assert [images.shape for images, _ in open_data(options, CPU).train.epoch(1)] == [(4, 3, 96, 96)] * 2


def test_every_image_validates():
    batches = list(open_data(DIGITS, CPU).validation.epoch(0))
    assert [len(labels) for _, labels in batches] == [100, 100, 97]
    assert np.array_equal(torch.cat([labels for _, labels in batches]), read_digits(8).validation.labels)


def test_image_folders(tmp_path):
    for split in ("train", "val"):
        for index, name in enumerate(("ant", "bee")):
            (tmp_path / "imagenet" / split / name).mkdir(parents=True)
            for number in range(2):
                pixels = np.full((6, 4, 3), (index * 200, number * 100, 50), dtype=np.uint8)
                pixels[3:] = 255
                Image.fromarray(pixels).save(tmp_path / "imagenet" / split / name / f"{number}.png")
    options = replace(DIGITS, dataset=Dataset.imagenet, data_root=tmp_path, image_px=2, num_classes=2, batch_size=4)
    ((images, labels),) = open_data(options, CPU).validation.epoch(0)
    assert labels.tolist() == [0, 0, 1, 1]
    assert to_bytes(images, "imagenet")[3].tolist() == [
        [[200] * 2, [255] * 2],
        [[100] * 2, [255] * 2],
        [[50] * 2, [255] * 2],
    ]
    with pytest.raises(ValueError, match="2 classes"):
        open_data(replace(options, num_classes=1), CPU)


@pytest.mark.parametrize("source", ["synthetic_host", "synthetic_device"])
def test_synthetic_data_has_the_shape_of_the_real(source):
    options = replace(
        DIGITS, dataset=Dataset.imagenet64, source=DataSource[source], image_px=64, num_classes=1000, samples=350
    )
    data = open_data(replace(options, channels_last=True), CPU)
    batches = list(data.train.epoch(1))
    assert data.validation is None
    assert len(batches) == data.train.num_batches == 3
    for images, labels in batches:
        assert images.shape == (100, 3, 64, 64) and images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == torch.int64 and labels.min() >= 0 and labels.max() > 500
    assert abs(to_bytes(batches[0][0], "imagenet64").float().mean() - 127.5) < 2
    same, other = (next(open_data(options, CPU, seed).train.epoch(1))[1] for seed in (1, 2))
    assert torch.equal(same, batches[0][1]) and not torch.equal(other, same)
    assert open_data(replace(options, samples=None), CPU).train.num_batches == 1_281_167 // 100


def test_batches_on_the_device_take_turns():
    data = open_data(replace(DIGITS, source=DataSource.synthetic_device, samples=600), CPU).train
    pointers = [images.data_ptr() for images, _ in data.epoch(1)]
    assert pointers[:2] == pointers[4:] and len(set(pointers)) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 1501}, "less than one batch"),
        ({"source": DataSource.synthetic_device, "samples": 99}, "is less than batch_size="),
        ({"source": DataSource.synthetic_host, "samples": 99}, "is less than batch_size="),
        ({"num_classes": 9}, "10 classes"),
        ({"dataset": Dataset.cifar10, "image_px": 16}, "32 pixels"),
        ({"dataset": Dataset.imagenet64, "image_px": 32, "source": DataSource.synthetic_device}, "64 pixels"),
        ({"dataset": Dataset.cifar10, "image_px": 32}, "--data-root"),
    ],
)
def test_what_cannot_be_loaded_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        open_data(replace(DIGITS, **change), CPU)


@pytest.fixture
def few_files(monkeypatch):
    """Some made-up files, which are made as quickly as the real number of them is not."""
    few = {name: replace(kind, count=12, classes=min(kind.classes, 6)) for name, kind in image_data.KINDS.items()}
    monkeypatch.setattr(image_data, "KINDS", few)


def make_file_workload(cache: Path, **changes) -> Tiny:
    common = {
        "dataset": Dataset.cifar10,
        "source": DataSource.synthetic_files,
        "image_px": 32,
        "batch_size": 8,
        "samples": 40,
    }
    return replace(DIGITS, cache_root=cache, **(common | changes))


@pytest.mark.parametrize(
    ("dataset", "long_px", "least_bytes", "most_bytes"),
    [("cifar10", 32, 2000, 3000), ("imagenet64", 64, 8000, 10_000), ("imagenet", 500, 90_000, 130_000)],
)
def test_made_up_files_have_the_pixels_and_bytes_of_the_real_ones(
    few_files, tmp_path, dataset, long_px, least_bytes, most_bytes
):
    folder = image_data.find_or_make(Dataset[dataset], tmp_path)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    assert len(files) == 12
    assert len(list(folder.iterdir())) == 6
    assert least_bytes < sum(file.stat().st_size for file in files) / len(files) < most_bytes
    for file in files:
        with Image.open(file) as image:
            assert (max(image.size), image.mode) == (long_px, "RGB")
    before = [file.stat().st_mtime_ns for file in files]
    assert image_data.find_or_make(Dataset[dataset], tmp_path) == folder
    assert [file.stat().st_mtime_ns for file in files] == before


def test_files_go_to_the_users_cache_if_no_other_folder_is_given(few_files, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert image_data.find_or_make(Dataset.cifar10, None).parent == tmp_path / "gpu-collocation" / "synthetic-files"


def test_an_epoch_of_files_is_a_function_of_seed_and_number_whoever_reads_them(few_files, tmp_path):
    alone, helped = (open_data(make_file_workload(tmp_path, loader_workers=workers)).train for workers in (0, 2))
    next(helped.epoch(1))  # begun and left
    torch.manual_seed(0)
    drawn = torch.get_rng_state()
    epochs = []
    for number in (1, 2):
        pairs = list(zip(alone.epoch(number), helped.epoch(number), strict=True))
        assert len(pairs) == alone.num_batches == 5
        for alone_batch, helped_batch in pairs:
            assert torch.equal(alone_batch[0], helped_batch[0]) and torch.equal(alone_batch[1], helped_batch[1])
            assert alone_batch[0].shape == (8, 3, 32, 32) and alone_batch[0].dtype == torch.float32
        epochs.append(torch.cat([images for (images, _), _ in pairs]))
    assert not torch.equal(*epochs)
    assert torch.equal(torch.get_rng_state(), drawn)  # models draw from it
    other = torch.cat([images for images, _ in open_data(make_file_workload(tmp_path), CPU, 2).train.epoch(1)])
    assert not torch.equal(other, epochs[0])


def test_made_up_files_train_and_validate_in_the_ratio_of_the_data_set(few_files, tmp_path):
    data = open_data(make_file_workload(tmp_path, image_px=48, channels_last=True))
    assert data.is_made_up
    images, labels = next(data.train.epoch(1))
    assert images.shape == (8, 3, 48, 48) and images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    assert [len(labels) for _, labels in data.validation.epoch(0)] == [8]  # 40 of 50,000 are 8 of 10,000
    assert [images.shape[2] for images, _ in data.validation.epoch(0)] == [48]


def test_files_of_a_data_set_are_read_by_class(tmp_path):
    for split, count in (("train", 4), ("val", 3)):
        for shade, name in enumerate(("ant", "bee")):
            folder = tmp_path / "cifar10" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 40), (shade * 255,) * 3).save(folder / f"{number}.png")
    options = make_file_workload(tmp_path, source=DataSource.files, data_root=tmp_path, samples=None, num_classes=1000)
    data = open_data(options)
    assert not data.is_made_up
    ((images, labels),) = data.train.epoch(1)
    assert sorted(labels.tolist()) == [0] * 4 + [1] * 4
    assert [bool(image.max() > 0) for image in images] == [bool(label) for label in labels]
    assert [labels.tolist() for _, labels in data.validation.epoch(0)] == [[0, 0, 0, 1, 1, 1]]
    with pytest.raises(ValueError, match="2 classes"):
        open_data(replace(options, num_classes=1))
    (tmp_path / "cifar10" / "val" / "bee").rename(tmp_path / "cifar10" / "val" / "cat")
    with pytest.raises(ValueError, match="different classes"):
        open_data(options)
    with pytest.raises(FileNotFoundError, match="put train/CLASS"):
        open_data(replace(options, dataset=Dataset.imagenet64))


@pytest.mark.parametrize("source", ["synthetic_host", "synthetic_files"])
def test_loader_processes_end_at_once_even_if_they_hang(few_files, tmp_path, source, monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 300.0)  # PyTorch waits so long for each
    data = open_data(make_file_workload(tmp_path, source=DataSource[source], loader_workers=2))
    next(data.train.epoch(1))
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    os.kill(workers[0].pid, signal.SIGSTOP)
    began = time.monotonic()
    data.close()
    data.close()
    assert time.monotonic() - began < 120
    assert multiprocessing.active_children() == []
