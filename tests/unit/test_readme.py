"""The README and the guides say what is true: links lead somewhere, files are there, and every key has its row."""

from __future__ import annotations

import importlib
import re
import tomllib

import pytest
from omegaconf import OmegaConf

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_schema, option_loader, option_tables
from workloads.model_options import DataSource

pytestmark = pytest.mark.covers("README.md", "CONTRIBUTING.md", "docs", "zensical.toml")

README, DOCS = PROJECT_DIR / "README.md", PROJECT_DIR / "docs"
PAGES = [README, PROJECT_DIR / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
CONFIGURATION = TEXTS[PROJECT_DIR / "docs/configuration.md"]
OURS = "pipeline|listeners|workloads|hydra_plugins|conf|tests|benchmarks"
MODULE = r"(?<![\w./-])(?:pipeline|listeners|workloads)(?:\.(?!(?:md|py|[A-Z]{3,})\b)\w+)+"
# Pages about what the reader adds: `tests/flow/test_extensions.py` makes their files.
OWN = {
    page
    for page in PAGES
    if page.stem in ("your_own_listener", "your_own_workload", "your_own_sharing_mode", "your_own_column")
}


def anchors_of(text):
    """What a link may name after `#`, as GitHub makes it of each heading."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_report(target):
    """True if `make docs` makes this page of a report, from a bundle beside its folder."""
    return target.name == "index.html" and target.parent.with_suffix(".tar.xz").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", TEXTS[page]):
        if path.startswith("http"):
            continue
        target = (page.parent / path).resolve() if path else page
        if is_report(target):
            continue
        assert target.exists(), path
        if anchor:
            assert anchor in anchors_of(TEXTS[target]), f"{path}#{anchor}"


def pages_in(navigation):
    """Yield every page of a navigation as it is written in zensical.toml: a path, or a title with one or several."""
    for entry in navigation:
        if isinstance(entry, str):
            yield entry
        else:
            for pages in entry.values():
                yield from pages_in([pages] if isinstance(pages, str) else pages)


def test_the_site_leads_to_every_page_once():
    site = tomllib.loads((PROJECT_DIR / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert site["docs_dir"] == "docs"
    assert sorted(pages_in(site["nav"])) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if DOCS in page.parents], ids=lambda page: page.name)
def test_pages_of_the_site_link_to_files_of_the_site(page):
    """A folder has no page, and what is not below `docs/` is not there."""
    for path in re.findall(r"\]\((?!http)([^)#]+)", TEXTS[page]):
        target = (page.parent / path).resolve()
        assert (target.is_file() or is_report(target)) and DOCS in target.parents, path


def test_each_study_has_its_data_on_a_page_and_each_page_its_picture_in_the_gallery():
    """A page may rest on several studies; the first one has its name."""
    folder = DOCS / "results"
    names = [bundle.name.removesuffix(".tar.xz") for bundle in sorted(folder.glob("*.tar.xz"))]
    gallery = TEXTS[folder / "README.md"]
    of_pages = {name for name in names if folder / f"{name}.md" in TEXTS}
    assert of_pages
    for name in of_pages:
        page = TEXTS[folder / f"{name}.md"]
        assert f"]({name}.md)" in gallery and f"]({name}.svg)" in gallery and f"]({name}.svg)" in page, name
        assert f"]({name}/index.html)" in gallery and f"]({name}.tar.xz)" in gallery, name
    for name in names:
        assert any(
            all(f"]({target})" in TEXTS[folder / f"{page}.md"] for target in _list_files(name)) for page in of_pages
        ), name


def _list_files(study: str) -> tuple[str, ...]:
    return (f"{study}.csv", f"{study}.tar.xz", f"{study}/index.html")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lists_are_nested_as_the_site_reads_them(page):
    """By four spaces; GitHub takes fewer, too."""
    text = re.sub(r"^ *```.*?^ *```", "", TEXTS[page], flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, flags=re.MULTILINE) == []


@pytest.mark.parametrize("page", sorted({*PAGES, PROJECT_DIR / "CHANGELOG.md"} - OWN), ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_are_there(page):
    """Of a path that ends in a word of the reader's, as in `conf/env/NAME.yaml`, the folder."""
    text = page.read_text(encoding="utf-8")
    for path in re.findall(rf"(?<![\w./-])(?:{OURS})/[\w./-]*", text):
        known = re.split(r"[A-Z]{3,}", path)[0]
        assert (PROJECT_DIR / (known if known == path else known.rpartition("/")[0]).rstrip(".")).exists(), path
    folders = "|".join(path.name for path in (PROJECT_DIR / "pipeline").iterdir() if path.is_dir())
    for path in re.findall(rf"`((?:{folders})/[\w/]+\.py)`", text):
        assert (PROJECT_DIR / "pipeline" / path).is_file(), path
    keys = {re.sub(r"^(listeners\.)\w+\.", r"\1NAME.", name): name for name in re.findall(MODULE, text)}
    for name in keys.keys() - read_keys():
        assert is_there(keys[name]), keys[name]


def is_there(name):
    """Whether a dotted name is that of a module, or of something in one."""
    words = name.split(".")
    for length in range(len(words), 1, -1):
        file = PROJECT_DIR.joinpath(*words[:length])
        if file.with_suffix(".py").exists() or file.is_dir():
            if length == len(words):
                return True
            return hasattr(importlib.import_module(".".join(words[:length])), words[length])
    return False


def test_the_test_command_is_what_continuous_integration_runs():
    assert "make test" in TEXTS[README]
    assert "make test" in (PROJECT_DIR / ".ci/run").read_text(encoding="utf-8")


def read_keys():
    """Return every key of docs/configuration.md."""
    return set(re.findall(r"^\| `([^`]*)`", CONFIGURATION, re.MULTILINE))


def keys_of(values, prefix=""):
    """Yield every key of a composed configuration."""
    for name, value in values.items():
        key = re.sub(r"^(listeners\.)\w+$", r"\1NAME", f"{prefix}{name}")
        is_group = isinstance(value, dict) and ("." not in key or key == "listeners.NAME")
        if is_group and key != "sizes":
            yield from keys_of(value, f"{key}.")
        elif name not in {"_target_", "sizes"}:
            yield key


def kinds(group):
    """By file of a folder of `conf/` that is not made of another one there: the schema that has its keys, if any."""
    files = sorted((PROJECT_DIR / "conf" / group).glob("*.yaml"))
    based = {file.stem: re.search(r"^defaults: \[([/\w.]+)", file.read_text(), re.MULTILINE) for file in files}
    return {name: base and base[1] for name, base in based.items() if base is None or base[1] not in based}


def test_the_page_of_configuration_has_every_key(compose):
    options = {group: list(kinds(group)) for group in ("scenario", "env", "window", "profiler", "exporter", "tracking")}
    # Of each kind of workload the file that sets least.
    workloads = ["tiny", "resnet26_cifar10", "script", "infer_tiny", "infer_tiny_text", "tiny_text"]
    workloads += ["infer_resnet18", "infer_bert_base", "bert_base"]
    workloads += ["micro", "particles", "stressor", "stressor_turns", "server", "openai_server", "framework"]
    schemas = kinds("workload")
    assert {schemas[name] for name in workloads} == set(schemas.values())
    options |= {"workload": workloads, "gpu": ["auto"], "listeners": [f"[{','.join(kinds('listeners'))}]"]}
    chosen = [
        [f"{group}={choices[i % len(choices)]}" for group, choices in options.items()]
        for i in range(max(map(len, options.values())))
    ]
    configs = compose(*chosen)
    keys = {"blocks"}.union(*(keys_of(OmegaConf.to_container(config, enum_to_str=True)) for config in configs))
    assert read_keys() == keys


def test_the_tables_of_options_are_those_of_the_classes():
    stale = "python -m pipeline.plan.option_tables writes them anew"
    assert option_tables.fill_tables(CONFIGURATION) == CONFIGURATION, stale
    named = set(re.findall(r"<!-- options: ([\w.]+) -->", CONFIGURATION))
    kinds = option_loader.list_classes([PROJECT_DIR / "conf"], is_strict=True).values()
    modules = {f"{base.__module__}.{base.__qualname__}" for kind in kinds for base in kind.__mro__}
    with_options = {name for name in modules if name.startswith("workloads.") and list(rows_of(name))}
    assert with_options | {"workload", "script"} | option_tables.OTHER_TABLES == named
    assert tuple(DataSource.__members__) == config_schema.SOURCES


def rows_of(name):
    module, _, kind = name.rpartition(".")
    return option_tables.list_rows(getattr(importlib.import_module(module), kind))
