"""`+duration=minutes`: windows instead of epochs, less work for mixes; blocks and the command line have precedence."""

from __future__ import annotations

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.plan.config_schema import Config
from tests.support.experiments import configs_of, sweeper_of

MINUTES = "+duration=minutes"
SMALL = ["workload=robroek_small", "degree=2", "scenario=naive"]


def window_of(config: Config) -> tuple[object, ...]:
    return config.window.kind.value, config.window.seconds, config.window.settle_s


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_copies_are_measured_in_windows_whatever_the_order_of_the_arguments(order):
    config, *others = configs_of([*["+experiment=robroek_resnet_bs32", MINUTES][::order], *SMALL])
    assert [window_of(one) for one in (config, *others)] == [("steady", 20, 2)] * 5  # once for each block
    assert (config.data.source, config.workload.source.name, config.workload.samples) == (
        *["synthetic_files"] * 2,
        None,
    )


@pytest.mark.slow
def test_mixes_keep_the_proportions_of_their_work():
    config, *_ = configs_of(["+experiment=robroek_mixes", MINUTES, "mix=[L,M,S]", "scenario=naive"])
    assert (config.window.kind.value, config.window.epochs) == ("work", 1)
    samples = {size: config.sizes[size].samples for size in "SML"}
    published = {"S": 50_000, "M": 1_281_167, "L": 1_281_167}
    shares = [5 * published[size] / samples[size] for size in "SML"]
    assert shares == pytest.approx([195.3] * 3, rel=0.002)
    assert all(samples[size] % config.sizes[size].batch_size == 0 for size in "SML")


@pytest.mark.slow
def test_blocks_and_the_command_line_have_precedence():
    asked = ["+experiment=robroek_quick", MINUTES, "window.seconds=7", "scenario=naive"]
    configs = configs_of([*asked, "data.source=synthetic_device"])
    mixes = [config for config in configs if config.mix]
    assert {window_of(config) for config in configs if not config.mix} == {("steady", 7, 2)}
    assert {(mix.window.kind.value, mix.sizes["S"].samples) for mix in mixes} == {("work", 28_800)}
    assert {config.data.source for config in configs} == {"synthetic_device"}


@pytest.mark.slow
def test_a_rehearsal_stays_short():
    (config,) = configs_of([MINUTES, "+rehearse=tiny", "degree=2"])
    assert window_of(config) == ("steady", 1, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["window=work"], r"window=work runs whole epochs, but \+duration=minutes measures windows; remove one$"),
        (["+duration=minutes,minutes"], r"cannot be swept; start a study for each duration$"),
    ],
)
def test_contradictions_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        sweeper_of([MINUTES]).expand([*SMALL, *arguments])
