"""The answer of a study in a few sentences, what ran, and what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from pipeline.base.domain.group_names import own_params
from pipeline.base.domain.modes import MIG, SERIAL
from pipeline.base.domain.normalise import MEAN_SLOWDOWN, P99_SLOWDOWN
from pipeline.report.evaluate import other_gpus, scaling
from pipeline.report.evaluate.beside import kept_in_words
from pipeline.report.evaluate.cells import Case, Cell, cases_of
from pipeline.report.evaluate.statistics import MARGIN, MIN_BLOCKS, MIN_GPUS, times_in_words
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import ENDINGS, jobs_in_words, listed
from pipeline.report.page.services import most_requests
from pipeline.report.read import hosts, labels
from pipeline.report.read.choice import STUDY
from pipeline.report.read.records import Study

_MOST_STUDIES = 5
"""Named as not shown."""
_MOST_NAMED = 2
"""Cases that gain nothing."""


def answer(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    """What other GPUs cost, if that was asked; what is gained by running jobs together, how, and how sure that is."""
    if not study.rows:
        return ["There is no result yet."]
    return [*other_gpus.in_short(other_gpus.kept(study)), *_of_sharing(study, cells, winners)]


def _of_sharing(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    together = sorted((w for w in winners if w.degree > 1), key=lambda winner: -winner.speedup.median)
    mixed = kept_in_words(cells)
    if mixed:
        mixed[0] += sizes_in_words(study, {cell.case for cell in cells if cell.case.is_mix})
    on = f"On {_devices(study)}"
    if together:
        said = [f"{on}, {_most_gained(study, together)}.", *_least_gained(study, together), *_who_won(cells, together)]
        return [*said, f"{_how_sure(study, together)}.", *(f"{_capitalised(clause)}." for clause in mixed)]
    if mixed:
        return [f"{on}, {mixed[0]}.", *(f"{_capitalised(clause)}." for clause in mixed[1:])]
    if clause := _of_services(cells) or _of_mig(cells):
        return [f"{on}, {clause}."]
    return [f"{on} no group of several jobs has a figure to compare with its baseline."]


def _of_services(cells: Sequence[Cell]) -> str:
    """What services bear within their objective, else how much longer their requests take than alone; or nothing."""
    if borne := most_requests(cells):
        return borne
    together = [cell for cell in cells if cell.degree > 1 and not cell.is_derived]
    for name, title in ((P99_SLOWDOWN, "p99"), (MEAN_SLOWDOWN, "mean")):
        known = sorted((c for c in together if name in c.shown), key=lambda cell: cell.shown[name].median)
        if known:
            ends = [known[0], known[-1]] if len(known) > 1 else known
            parts = [f"{times_in_words(c.estimates[name])} ({jobs_in_words(c.case, c.degree)}, {c.mode})" for c in ends]
            return f"the {title} latency of services together is {' to '.join(parts)} that of one alone"
    return ""


def _of_mig(cells: Sequence[Cell]) -> str:
    """What MIG takes from single jobs, and what neighbours take on it; or nothing."""
    losses = [(step.loss_pct, step) for step in scaling.steps(cells) if step.loss_pct is not None]
    losses.sort(key=lambda loss: loss[0])
    besides = [each for each in scaling.besides(cells) if each.cell.sharing == MIG]
    kept = sorted(besides, key=lambda each: each.kept.median)
    parts = []
    if losses:
        ends = [losses[0], losses[-1]] if len(losses) > 1 else losses
        least_pct, step = losses[0]
        if least_pct < 0:  # one of them is a gain
            each = [f"{abs(pct):.1f} % {'slower' if pct > 0 else 'faster'} ({end.case.label})" for pct, end in ends]
            how = f"{' to '.join(each)} than on the whole GPU"
        elif len(ends) > 1 and len({f"{pct:.1f}" for pct, _ in ends}) == 1:
            how = f"slower than on the whole GPU by {least_pct:.1f} % in each of {len(losses)} cases"
        else:
            each = [f"{pct:.1f} % ({end.case.label})" for pct, end in ends]
            how = f"slower than on the whole GPU by {' to '.join(each)}"
        parts.append(f"on {step.smaller} a job is {how}")
    if kept:
        worst = kept[0]
        parts.append(
            f"beside neighbours on other instances it keeps {times_in_words(worst.kept)} its throughput at least "
            f"({worst.cell.case.label}, {worst.cell.mode})"
        )
    return "; ".join(parts)


def setup(study: Study) -> list[str]:
    """What all programs have in common, and the GPUs of the blocks where there are several; a sentence an entry."""
    every = [own_params(job.params) for row in study.rows for job in row.jobs]
    common = [next(iter(values)) for values in labels.of_all(every).values() if len(values) == 1]
    whose = "All jobs" if all(map(labels.tells, every)) else "All jobs but scripts of your own"
    said = [f"Only a part of experiment {study.experiment} is shown: {study.choice}."] if study.choice else []
    said += [f"{whose}: {', '.join(common)}."] if common else []
    blocks: dict[str, list[int]] = defaultdict(list)
    for block in study.blocks:
        blocks[f"{block.device} {_short(block.gpu_uuid)}".strip()].append(block.number)
    if len(blocks) > 1:
        parts = [f"{_numbers(numbers)} on {gpu}" for gpu, numbers in blocks.items()]
        num_models = len(study.devices)
        models = f" of {num_models} models, each with cells of its own" if num_models > 1 else ""
        said.append(f"The blocks ran on {len(blocks)} GPUs{models}: {listed(parts)}.")
    said += study.environments
    for device, differing in hosts.differences(study.rows).items():
        are_apart = any(dict(row.settings).get(hosts.SETTING) for row in study.rows if row.device == device)
        told = "are cells of their own (--pool hosts: together)" if are_apart else "count as repeats of each other"
        said.append(f"The hosts of {device} differ in {listed(differing)}; their blocks {told}.")
    return said


def not_ranked(cells: Sequence[Cell]) -> str:
    """How many combinations of jobs and mode ended without a figure, and how; empty for none."""
    found = Counter(cell.finding for cell in cells if not cell.is_derived and not cell.is_ranked)
    told = {result: words.of_several for result, words in ENDINGS.items() if found[result] and words.of_several}
    parts = [f"{found[result]} {words}" for result, words in told.items()]
    return f"Of all combinations of jobs and mode, {listed(parts)}; they are shown and not ranked." if parts else ""


def missing(study: Study) -> list[str]:
    """What a half-run study lacks, and which runs were left out and why; empty for a complete one."""
    said = [
        f"Block {block.number} on {block.device} lacks {block.num_missing} of {block.num_expected} groups."
        if block.num_groups
        else f"Block {block.number} on {block.device} has no group yet."
        for block in study.blocks
        if block.num_missing
    ]
    if study.num_planned is not None and len(study.rows) < study.num_planned:
        said.append(f"The study is not complete: {len(study.rows)} of {study.num_planned} planned groups have a row.")
    return said + left_out(study)


def left_out(study: Study) -> list[str]:
    """Return a sentence for each reason why runs of the experiment are not in the report, and how to see them."""
    said = [f"{_runs(number)} left out ({reason})." for reason, number in sorted(study.left_out.items())]
    if study.not_shown:
        more = len(study.not_shown) - _MOST_STUDIES
        names = [*study.not_shown[:_MOST_STUDIES], *([f"{more} older ones"] if more > 0 else [])]
        said.append(f"Studies of this experiment without a group here: {listed(names)}; {STUDY} ID shows one.")
    return said


def _devices(study: Study) -> str:
    """`one NVIDIA H100 80GB HBM3`, `3 NVIDIA ...`, a simulated one as such."""
    gpus = Counter(device for device, _ in {(row.device, row.gpu_uuid) for row in study.rows})
    simulated = "simulated " if study.is_simulated else ""
    named = [f"{'one' if n == 1 else n} {simulated}{device or 'unknown device'}" for device, n in sorted(gpus.items())]
    return listed(named)


def _most_gained(study: Study, together: Sequence[Winner]) -> str:
    """Return the highest gain, in a clause; `together` has it first."""
    best = together[0]
    if not _gains(best):
        return f"jobs gain nothing by running together: {times_in_words(best.speedup)} at most, {_what(study, best)}"
    gain = f"{_what(study, best)} run {times_in_words(best.speedup)} as fast as one after another"
    if best.over_best_solo is not None:
        gain += f", and {times_in_words(best.over_best_solo)} as fast as one at a time in its best step mode"
    return f"{gain}{best.marks}"


def _least_gained(study: Study, together: Sequence[Winner]) -> list[str]:
    """Return a sentence on what gained nothing, or else least, unless it is what gained most."""
    worst, none = together[-1], [winner for winner in together if not _gains(winner)]
    if len(together) == 1 or len(none) == len(together):
        return []
    if not none:
        return [f"The smallest gain is {times_in_words(worst.speedup)}, {_what(study, worst)}{worst.marks}."]
    names = [jobs_in_words(winner.case, winner.degree) for winner in none]
    if len(names) <= _MOST_NAMED:
        return [f"Sharing gains nothing for {listed(names)}."]
    return [f"Sharing gains nothing in {len(none)} of {_cases(len(together))}, such as {names[-1]}."]


def _gains(winner: Winner) -> bool:
    """Whether the fastest mode is a shared one, by more than anybody would overlook."""
    return winner.tied[0] != SERIAL.label and winner.speedup.median >= 1 + MARGIN


def _who_won(cells: Sequence[Cell], together: Sequence[Winner]) -> list[str]:
    """Return a sentence on which kinds of sharing are the fastest in how many cases."""
    kinds = {cell.mode: cell.sharing.label for cell in cells}
    wins = Counter(_way(kinds.get(winner.mode, winner.mode)) for winner in together if winner.mode is not None)
    first, *others = sorted(wins, key=lambda way: (-wins[way], way)) or [""]
    undecided = len(together) - wins.total()
    if not wins:
        return [f"No mode is told apart from the others in {_cases(len(together))}."]
    if len(wins) == 1 and not undecided:
        return [f"{_capitalised(first)} is fastest in {_cases(len(together), 'all')}."]
    parts = [
        f"{first} is fastest in {wins[first]} of {_cases(len(together))}",
        *(f"{way} in {wins[way]}" for way in others),
    ]
    open_ = [f"in {undecided} no mode is told apart from all others"] if undecided else []
    return [f"{_capitalised('; '.join([listed(parts), *open_]))}."]


def _cases(number: int, every: str = "") -> str:
    return "the one case of several jobs" if number == 1 else f"{every or 'the'} {number} cases of several jobs"


def _how_sure(study: Study, together: Sequence[Winner]) -> str:
    complete = Counter(block.device for block in study.blocks if block.num_missing == 0)
    number = min((complete[block.device] for block in study.blocks), default=0)
    blocks = "One complete block" if number == 1 else f"{number or 'No'} complete blocks"
    if len(study.devices) > 1:
        blocks += f" of each GPU model{' at least' if len(set(complete.values())) > 1 else ''}"
    num_open = sum(not winner.is_enough for winner in together)
    gpus = max(winner.num_gpus for winner in together)
    if num_open == len(together):
        if 1 < gpus < MIN_GPUS:
            return f"Of several GPUs each counts once: these are {gpus}, and a verdict takes {MIN_GPUS}"
        return f"{blocks}; a verdict takes {MIN_BLOCKS}"
    sure = f"{blocks}; intervals are 95 % each, verdicts are corrected over all comparisons"
    sure += ", and each GPU counts once" if gpus > 1 else ""
    return f"{sure}; in {num_open} of the cases too few blocks or GPUs for a verdict" if num_open else sure


def _way(mode: str) -> str:
    return "one after another" if mode == SERIAL.label else mode


def _what(study: Study, winner: Winner) -> str:
    """`3 resnet26_cifar10 under MPS`; of a mix its sizes, and of modes that are not told apart the fastest median."""
    first, *others = winner.tied
    jobs = f"{jobs_in_words(winner.case, winner.degree)}{sizes_in_words(study, [winner.case])}"
    way = f"{jobs} {_way(first) if first == SERIAL.label else f'under {first}'}"
    # Where no verdict can be, that is said of all cases.
    is_told = others and winner.is_enough
    return f"{way} (not told apart from {listed([_way(mode) for mode in others])})" if is_told else way


def sizes_in_words(study: Study, cases: Collection[Case]) -> str:
    """Return what the letters of some mixes stand for, as ` (L: resnet152_imagenet, S: resnet26_cifar10)`, or nothing.

    A letter that stands for several workloads is left out: the table of mixes has them.
    """
    case_of = cases_of(study)
    meant: dict[str, set[str]] = defaultdict(set)
    for row in study.rows:
        if row.is_mix and case_of[row.run_id] in cases:
            for job in row.jobs:
                meant[job.size or ""].add(job.params.get("workload", ""))
    parts = [f"{size}: {names.pop()}" for size, names in sorted(meant.items()) if size and len(names) == 1]
    return f" ({', '.join(parts)})" if parts else ""


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(uuid: str) -> str:
    """The first digits of a UUID, as `nvidia-smi -L` begins: `GPU-d55853c3`."""
    return uuid[: len("GPU-") + 8]


def _numbers(numbers: Sequence[int]) -> str:
    """`1 to 5`, `6 and 7`, `1`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return listed([str(number) for number in numbers])


def _runs(number: int) -> str:
    return "One run was" if number == 1 else f"{number} runs were"
