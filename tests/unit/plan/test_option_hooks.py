"""What an option class says by its hooks is checked before anything runs, and refused in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.system import factory
from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line, groups, job_entries, option_loader
from workloads import client, program
from workloads.options import option

CPU = cpu_device()


@dataclass(kw_only=True)
class Primes:
    """Count primes."""

    work_unit = "numbers"
    tilt: float = option(0.5, least=0, help="of the sieve")
    total: int = option(0, least=0, help="of all")
    bins: list[int] = option([1], least=1, help="of the histogram")

    def derive_values(self) -> dict[str, Any]:
        return {"tilt": self.tilt / 2, "total": 3}


def primes(**methods: Any) -> Any:
    """Return a workload of `Primes` with other methods."""
    kind = option_loader.load(f"{__name__}.Primes")
    values = {key: methods.pop(key) for key in ("tilt", "total", "bins") if key in methods}
    return type("Primes", (kind,), methods)(**values)


def test_values_are_derived_once_and_those_that_are_given_win(monkeypatch):
    planned = primes(total=99).complete().program_options()
    assert planned == {"tilt": 0.25, "total": 99, "bins": [1]}
    by_hand = program.parse(Primes, ["--total", "99"])
    assert (by_hand.tilt, by_hand.options.tilt, by_hand.total) == (0.25, 0.25, 99)
    monkeypatch.setenv(client.FOLDER_VARIABLE, "job")
    args = program.parse(Primes, groups._make_flags(planned))
    assert {key: getattr(args, key) for key in planned} == planned


def fail(*_: object) -> None:
    raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ({"derive_values": lambda _: {"totl": 3}}, "derive_values returns totl, which is not an option"),
        ({"derive_values": lambda _: {"total": "x"}}, "derive_values: total=x: Value 'x' of type 'str' could not"),
        ({"derive_values": lambda _: {"total": -1}}, "derive_values: total=-1 must not be negative"),
        ({"derive_values": lambda _: None}, r"derive_values failed: TypeError: .* \(test_option_hooks.py:\d+\)"),
        ({"check": lambda _: None}, r"check failed: TypeError: .* \(test_option_hooks.py:\d+\)"),
        ({"check": fail}, r"check failed: RuntimeError: no luck \(test_option_hooks.py:\d+\)"),
        ({"check_data": fail}, "check_data failed: RuntimeError"),
        ({"packages": fail}, "packages failed: RuntimeError"),
        ({"tilt": math.inf}, "tilt=inf must be finite"),
        ({"bins": [2, 0]}, "bins=0 must be at least 1"),
    ],
)
def test_a_mistake_in_a_class_or_value_is_refused_in_one_line(workload, why):
    wrong = primes(**workload)
    with pytest.raises(ConfigError, match=f"^workload primes: {why}"):
        wrong = wrong.complete()
        wrong.refuse_wrong(CPU, device_was_chosen=True)
        wrong.refuse_missing_data()
        wrong.needed_packages()


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (lambda _: 3, "small returned 3, not a workload"),
        (fail, "small failed: RuntimeError"),
        (lambda self: replace(self, total=-1), "small: total=-1 must not be negative"),
        (lambda self: replace(self, total="x"), "small: total: Value 'x'"),
    ],
)
def test_a_small_form_that_cannot_run_is_refused_by_its_name(method, why):
    with pytest.raises(ConfigError, match=f"^workload primes: {why}"):
        job_entries._shrink(primes(small=method))


@dataclass
class Pair:
    """An option of a type that no command line has."""

    pair: tuple[int, int] = field(default=(1, 2))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{__name__}.Pair", r"pair has the unsupported type tuple\[int, int\]; use int, float"),
        ("workloads.primes.Primes", "this project's package `workloads` has no workloads.primes; correct the name"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(name, why):
    with pytest.raises(ConfigError, match=why):
        option_loader.load(name)


def test_a_module_that_lacks_another_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import torchh\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="lacking cannot be imported: No module named 'torchh'"):
        factory.find("lacking.Options", "/schema/lacking.Options")


def test_the_element_of_a_list_is_refused_and_not_the_list():
    node = OmegaConf.structured(Primes)
    with pytest.raises(OmegaConfBaseException) as refused:
        OmegaConf.update(node, "bins", ["x"])
    assert command_line.explain_refusal("bins", refused.value) == "holds x; each element must be a whole number"
