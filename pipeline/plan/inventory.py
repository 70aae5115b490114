"""The inventory of the machine for a plan: devices, interpreters and scripts. Changes nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.protocols import Env
from pipeline.base.domain.records import Device, Interpreter
from pipeline.base.system import entry_points, factory, user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR, find_file, is_file
from pipeline.plan import job_entries
from pipeline.plan.config_schema import Config, GpuConfig, GpuKind
from pipeline.plan.option_loader import find_root
from pipeline.plan.source_digest import Code, find_module_file, read_code, uses_job_protocol
from pipeline.plan.workload_config import WorkloadConfig

_OF_PYTHON, _OF_TEXT = (".py", ".pyw", ""), (".txt", ".md", ".json", ".yaml", ".yml", ".toml", ".csv", ".log")
SPEED_VARIABLES = re.compile(
    r"(?!CUDA_VISIBLE_DEVICES|CUDA_MPS_|NCCL_DEBUG|TORCH_LOGS|TF_CPP_|.*_(?:DIR|PATH|HOME|ROOT|FILE|VERSION)$"
    r"|KMP_(?:DUPLICATE_LIB_OK|INIT_AT_FORK)$)"  # scikit-learn sets both in this process if something imports it
    r"(?:CUDA|CUBLAS|CUBLASLT|CUDNN|NCCL|TORCH\w*|PYTORCH|TF|XLA|JAX|TRITON|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|MALLOC)_"
    r"|NVIDIA_TF32_OVERRIDE$|LD_PRELOAD$"
)
"""Names of environment variables of the caller that jobs inherit and that change their speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The facts on which a plan depends, in addition to its configuration.

    Attributes:
        devices: devices by request (kind, selector and simulated model).
        interpreters: interpreters by requested environment; some environments may still have to be built.
        scripts: code by the path of a script in the configuration, the name of an environment's program, or the name of
            a preloaded module of the project.
        environ: variables of the caller that change the speed of jobs (`SPEED_VARIABLES`).
        may_lack: environments whose failed build skips their groups instead of refusing the study.
    """

    devices: dict[tuple[GpuKind, str, str | None], Device]
    interpreters: dict[Spec, Interpreter]
    scripts: dict[str, Code]
    environ: Mapping[str, str] = field(default_factory=dict)
    may_lack: frozenset[Spec] = frozenset()

    def with_environments(self) -> Inventory:
        """Build every environment and return the inventory; slow, so call it after the plan has been checked."""
        envs: dict[Spec, Env] = {spec: factory.build_object(spec) for spec in self.interpreters}
        return dataclasses.replace(self, interpreters={spec: self._built(spec, env) for spec, env in envs.items()})

    def _built(self, spec: Spec, env: Env) -> Interpreter:
        try:
            return env.resolve()
        except ConfigError as error:
            if spec not in self.may_lack:
                raise
            reason = " ".join(str(error).split())
            return dataclasses.replace(self.interpreters[spec], to_build=None, why_not_built=reason)

    def device_of(self, gpu: GpuConfig) -> Device:
        return self.devices[_select_gpu(gpu)]


def take_inventory(
    configs: Iterable[Config], find_device: Callable[[GpuConfig], Device], *, needs_data: bool = True
) -> Inventory:
    """Find the devices, interpreters and scripts of the configurations; nothing is built.

    Args:
        configs: the configurations.
        find_device: finds the device that `gpu` of a configuration requests.
        needs_data: whether data sets must exist; false if the jobs run on other machines.

    Raises:
        ConfigError: a device, script, environment file or data set does not exist.
    """
    all_configs = list(configs)
    devices = {selector: find_device(gpu) for selector, gpu in {_select_gpu(c.gpu): c.gpu for c in all_configs}.items()}
    unique = {
        id(workload): (config, workload)
        for config in all_configs
        for _, workload in (*job_entries.list_co_runners(config), *job_entries.list_jobs(config))
    }
    workloads = list(unique.values())
    envs: dict[Spec, Env] = {
        spec: factory.build_object(spec) for spec in {choose_environment(*pair): None for pair in workloads}
    }
    scripts: dict[str, Code] = {}
    speaking = set[str]()
    interpreters = {spec: env.preview() for spec, env in envs.items()}
    for config, workload in workloads:
        if workload.script == workload.runner:
            raise ConfigError(
                f"workload.script={workload.script} is the name of this project's runner; for your own file, write "
                f"./{workload.script}"
            )
        named = {workload.script: "script"} | ({workload.runner: "runner"} if workload.runner else {})
        for script, key in {**workload.source_files(), **named}.items():
            if script not in scripts:
                has_programs = script == workload.script and workload.runner is not None
                interpreter = interpreters[choose_environment(config, workload)] if has_programs else None
                is_ours = key == "runner" or script == getattr(type(workload), key, None)  # else the file is the user's
                roots = find_root(type(workload))
                scripts[script] = _find_script(f"workload.{key}", script, interpreter, *roots, is_ours=is_ours)
        if workload.runner is None and workload.script not in speaking:
            _refuse_without_protocol(workload, scripts[workload.script])
            speaking.add(workload.script)
        if workload.script == "python":
            _refuse_missing_module(workload)
        module = workload.preload
        if module and module not in scripts and (file := find_module_file(module, PROJECT_DIR)) is not None:
            scripts[module] = read_code(file, PROJECT_DIR)
        if needs_data:
            workload.complete().refuse_missing_data()
    required = {
        choose_environment(config, workload) for config, workload in workloads if not workload.may_lack_packages
    }
    may_lack = frozenset(interpreters.keys() - required)
    environ = {name: value for name, value in os.environ.items() if SPEED_VARIABLES.match(name)}
    return Inventory(devices=devices, interpreters=interpreters, scripts=scripts, environ=environ, may_lack=may_lack)


def _refuse_without_protocol(workload: WorkloadConfig, code: Code) -> None:
    if not uses_job_protocol(code):
        raise ConfigError(
            f"workload {workload.name}: {workload.script} does not use the job protocol; run an unmodified script as: "
            f"{entry_points.spell('run', 'degree=2', '--', workload.script)}, or with workload=script"
        )


def _refuse_missing_module(workload: WorkloadConfig) -> None:
    for module in user_command.list_modules(workload.script, workload.argument_words()):
        package, place = module.partition(".")[0], Path(*module.split("."))
        is_own = Path(package, "__init__.py").is_file() or Path(f"{package}.py").is_file()
        if is_own and not place.with_suffix(".py").is_file() and not Path(place, "__main__.py").is_file():
            problem = "is a package without __main__.py" if place.is_dir() else f"is not a module in {Path.cwd()}"
            raise ConfigError(f"python -m {module}: {module} {problem}; check the name and the working directory")


def choose_environment(config: Config, workload: WorkloadConfig) -> Spec:
    """Return the environment of a workload's jobs; raise `ConfigError` if `env` does not support the workload's key."""
    spec = factory.make_spec(config.env)
    options = dict(spec.options)
    if workload.env_file is not None and "file" not in options:
        raise ConfigError(
            f"workload {workload.name}: env_file={workload.env_file} has no effect with this env; "
            "choose env=conda or env=venv"
        )
    if workload.env_prefix is not None and "prefix" not in options:
        raise ConfigError(
            f"workload {workload.name}: env_prefix={workload.env_prefix} has no effect with this env; "
            "choose env=existing"
        )
    paths = {"file": workload.env_file, "prefix": workload.env_prefix}
    options |= {key: value for key, value in paths.items() if value is not None}
    return dataclasses.replace(spec, options=tuple(options.items()))


def _select_gpu(gpu: GpuConfig) -> tuple[GpuKind, str, str | None]:
    return gpu.kind, gpu.device, gpu.model


def _find_script(key: str, script: str, interpreter: Interpreter | None, *roots: Path, is_ours: bool) -> Code:
    """Find the code of the file that a key names, else of a program in the interpreter's environment.

    Modules of the file may also be in `roots`.
    """
    folders = (Path.cwd(), PROJECT_DIR)
    is_here = script.endswith(".py") or any(is_file(folder / script) for folder in folders)
    if script and interpreter is not None and Path(script).name == script and not is_here:
        return Code(Path(script), _digest_program(script, interpreter))
    path = find_file(key, script, *roots, is_ours=is_ours)
    if (
        key == "workload.script" and not os.access(path, os.X_OK) and _is_other_program(path)
    ):  # other keys may name data
        remedy = (
            "name a .py file or a program" if path.suffix in _OF_TEXT else f"name a .py file, or run chmod +x {path}"
        )
        raise ConfigError(f"{key}={script}: {path} is neither executable nor a Python script; {remedy}")
    try:
        return read_code(path, PROJECT_DIR, *roots)
    except SyntaxError as error:
        raise ConfigError(f"{key}={script}: {error.filename} is not valid Python: {error}") from error
    except OSError as error:
        raise ConfigError(f"{key}={script}: {path} cannot be read: {error.strerror}") from error


def _is_other_program(path: Path) -> bool:
    """Return whether a file is no Python script, by its first line, or else by its name."""
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return b"python" not in first if first.startswith(b"#!") else path.suffix not in _OF_PYTHON


def _digest_program(name: str, interpreter: Interpreter) -> str:
    if (
        name == "python"
        or interpreter.to_build
        or interpreter.container
        or shutil.which(name, path=str(interpreter.python.parent))
    ):
        return name
    program = shutil.which(name)
    if Path(name).is_dir():
        raise ConfigError(f"workload.script={name} is a folder; name the file to run, such as {name}/train.py")
    if program is None:
        raise ConfigError(
            f"workload.script={name} is neither a file in {Path.cwd()} nor a program next to {interpreter.python} or "
            "on PATH; check the name"
        )
    return hashlib.sha256(Path(program).read_bytes()).hexdigest()
