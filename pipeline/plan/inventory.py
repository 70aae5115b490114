"""What this machine has, read once before the plan: devices, interpreters and the users' scripts. Reads only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.base import factory
from pipeline.base.errors import ConfigError
from pipeline.base.paths import PROJECT_DIR, find_file
from pipeline.base.protocols import Env
from pipeline.base.records import Device, Interpreter, Spec
from pipeline.plan.schema import Config, GpuConfig, GpuKind
from pipeline.plan.source_digest import Code, code_of, module_file
from pipeline.plan.workloads import WorkloadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The facts that a plan depends on beside its configuration.

    Attributes:
        devices: by what was asked for (kind, selector and simulated model).
        interpreters: by the environment that was asked for; some may have to be built before a job can run.
        scripts: the code of each script, by the path in the configuration; of a module to preload as well, by its
            name, if it is ours.
    """

    devices: dict[tuple[GpuKind, str, str | None], Device]
    interpreters: dict[Spec, Interpreter]
    scripts: dict[str, Code]

    def with_environments(self) -> Inventory:
        """The same, with every environment built that was not: slow, and best done for a plan that stands."""
        envs: dict[Spec, Env] = {spec: factory.instance(spec) for spec in self.interpreters}
        return dataclasses.replace(self, interpreters={spec: env.resolve() for spec, env in envs.items()})

    def device_of(self, gpu: GpuConfig) -> Device:
        return self.devices[_asked_for(gpu)]


def take(configs: Iterable[Config], find_device: Callable[[GpuConfig], Device]) -> Inventory:
    """Read what the configurations need; `find_device` finds what `gpu` of one asks for. Nothing is built.

    Raises:
        ConfigError: a device, script, environment file or data set that is named is not there.
    """
    every = list(configs)
    devices = {asked: find_device(gpu) for asked, gpu in {_asked_for(c.gpu): c.gpu for c in every}.items()}
    workloads = [(config, workload) for config in every for workload in chosen_workloads(config)]
    envs: dict[Spec, Env] = {spec: factory.instance(spec) for spec in {env_of(*each): None for each in workloads}}
    scripts: dict[str, Code] = {}
    for _, workload in workloads:
        for script in filter(None, (workload.script, workload.runner)):
            if script not in scripts:
                scripts[script] = _find_script(script)
        module = workload.preload
        if module and module not in scripts and (file := module_file(module, PROJECT_DIR)) is not None:
            scripts[module] = code_of(file, PROJECT_DIR)
        workload.check_data()
    interpreters = {spec: env.preview() for spec, env in envs.items()}
    return Inventory(devices=devices, interpreters=interpreters, scripts=scripts)


def chosen_workloads(config: Config) -> list[WorkloadConfig]:
    """The workloads of the jobs, in their order; ConfigError if `mix` names none, or one that does not exist."""
    if config.mix is None:
        if config.degree < 1:
            raise ConfigError(f"degree={config.degree}: at least one job must run")
        return [config.workload] * config.degree
    if not config.mix:
        raise ConfigError("mix=[]: name at least one size, as in mix=[S,M]")
    if unknown := sorted(set(config.mix) - set(config.sizes)):
        raise ConfigError(
            f"mix={config.mix}: {', '.join(unknown)} is not among the sizes {sorted(config.sizes)}; "
            "add one with +workload@sizes.NAME=WORKLOAD"
        )
    return [config.sizes[size] for size in config.mix]


def env_of(config: Config, workload: WorkloadConfig) -> Spec:
    """The environment of a workload's jobs; ConfigError if it has one of its own that is of another kind than `env`."""
    spec = factory.spec_of(config.env)
    options = dict(spec.options)
    if workload.env_file is not None and "file" not in options:
        raise ConfigError(
            f"workload {workload.name}: env_file={workload.env_file} names an environment to build, but the kind of "
            "environment that is chosen is built from no file; choose env=conda or env=venv"
        )
    if workload.env_prefix is not None and "prefix" not in options:
        raise ConfigError(
            f"workload {workload.name}: env_prefix={workload.env_prefix} names an environment that is there, but the "
            "kind of environment that is chosen is another; choose env=existing"
        )
    own = {"file": workload.env_file, "prefix": workload.env_prefix}
    options |= {key: value for key, value in own.items() if value is not None}
    return dataclasses.replace(spec, options=tuple(options.items()))


def _asked_for(gpu: GpuConfig) -> tuple[GpuKind, str, str | None]:
    return gpu.kind, gpu.device, gpu.model


def _find_script(script: str) -> Code:
    path = find_file("workload.script", script)
    try:
        return code_of(path, PROJECT_DIR)
    except SyntaxError as error:
        raise ConfigError(f"workload.script={script}: {error.filename} is not valid Python: {error}") from error
    except OSError as error:
        raise ConfigError(f"workload.script={script}: {path} cannot be read: {error.strerror}") from error
