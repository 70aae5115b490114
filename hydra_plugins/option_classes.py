"""Make the classes that declare options available as schemas in YAML files.

Example: `defaults: [/schema/products.options.Products@_here_, _self_]`, or for another group than `workload` with the
group, as in `/schema/scenario/pipeline.prepare.sharing.mig.Mig@_here_`. The classes of this module implement Hydra's
interfaces for configuration sources and search path entries.
"""

import re

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin

from pipeline.plan import option_loader

_SCHEMA = re.compile(r"schema/((?:\w+/)?(?:\w+\.)+\w+?)(?:\.yaml)?")


class OptionClasses(ConfigSource):
    """A configuration source that finds an option class by its dotted name and returns it as a schema."""

    @staticmethod
    def scheme() -> str:
        return "options"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        folder, _, group = config_path.rstrip("/").partition("/")
        return folder == "schema" and group in ("", *option_loader.BASES)

    def is_config(self, config_path: str) -> bool:
        return _SCHEMA.fullmatch(config_path.removesuffix(".yaml")) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []

    def load_config(self, config_path: str) -> ConfigResult:
        match = _SCHEMA.fullmatch(config_path.removesuffix(".yaml"))
        assert match is not None
        node = option_loader.make_node(match[1])
        return ConfigResult(provider=self.provider, path=self.full_path(), config=node, header={"package": None})


class OptionClassesPath(SearchPathPlugin):
    """The entry for option classes in Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("collocation", "options://")
