"""The answer of a study in a few sentences, what ran, and what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from pipeline.base.domain.group_names import list_program_params
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN
from pipeline.base.domain.sharing_modes import MIG, SERIAL
from pipeline.report.evaluate import other_gpus, scaling
from pipeline.report.evaluate.cells import Case, Cell, cases_of
from pipeline.report.evaluate.mixed_services import describe_shares
from pipeline.report.evaluate.statistics import MARGIN, MIN_BLOCKS, MIN_GPUS, times_in_words
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import ENDINGS, jobs_in_words, join_words
from pipeline.report.page.service_tables import describe_limits
from pipeline.report.read import hosts, labels
from pipeline.report.read.choice import STUDY
from pipeline.report.read.study_records import Study

_MOST_STUDIES = 5
"""Named as not shown."""
_MOST_NAMED = 2
"""Cases that gain nothing."""


def write_answer(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    """Return the answer of the report: the cost of other GPUs, the gain of sharing, and how sure that is."""
    if not study.rows:
        return ["There is no result yet."]
    return [*other_gpus.summarize_shares(other_gpus.compare_company(study)), *_describe_sharing(study, cells, winners)]


def _describe_sharing(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    together = sorted((w for w in winners if w.degree > 1), key=lambda winner: -winner.speedup.median)
    mixed = describe_shares(cells)
    if mixed:
        mixed[0] += sizes_in_words(study, {cell.case for cell in cells if cell.case.is_mix})
    on = f"On {_devices(study)}"
    if together:
        lines = [
            f"{on}, {_describe_highest_gain(study, together)}.",
            *_describe_lowest_gain(study, together),
            *_count_winners(cells, together),
        ]
        return [*lines, f"{_describe_certainty(study, together)}.", *(f"{_capitalise(clause)}." for clause in mixed)]
    if mixed:
        return [f"{on}, {mixed[0]}.", *(f"{_capitalise(clause)}." for clause in mixed[1:])]
    if clause := _describe_services(cells) or _describe_mig(cells):
        return [f"{on}, {clause}."]
    return [f"{on} no group of several jobs has a figure to compare with its baseline."]


def _describe_services(cells: Sequence[Cell]) -> str:
    if borne := describe_limits(cells):
        return borne
    together = [cell for cell in cells if cell.degree > 1 and not cell.is_derived]
    for name, title in ((P99_SLOWDOWN, "p99"), (MEAN_SLOWDOWN, "mean")):
        known = sorted((c for c in together if name in c.figures), key=lambda cell: cell.figures[name].median)
        if known:
            ends = [known[0], known[-1]] if len(known) > 1 else known
            parts = [f"{times_in_words(c.estimates[name])} ({jobs_in_words(c.case, c.degree)}, {c.mode})" for c in ends]
            return f"the {title} latency of services together is {' to '.join(parts)} that of one alone"
    return ""


def _describe_mig(cells: Sequence[Cell]) -> str:
    losses = [(step.loss_pct, step) for step in scaling.steps(cells) if step.loss_pct is not None]
    losses.sort(key=lambda loss: loss[0])
    besides = [effect for effect in scaling.compare_co_runners(cells) if effect.cell.sharing == MIG]
    in_order = sorted(besides, key=lambda effect: effect.throughput_ratio.median)
    parts = []
    if losses:
        ends = [losses[0], losses[-1]] if len(losses) > 1 else losses
        words = [f"{abs(pct):.1f} % {'slower' if pct > 0 else 'faster'} ({end.case.label})" for pct, end in ends]
        parts.append(f"on {losses[0][1].smaller} a job is {' to '.join(words)} than on the whole GPU")
    if in_order:
        worst = in_order[0]
        parts.append(
            f"beside co-runners on other instances it keeps {times_in_words(worst.throughput_ratio)} its throughput "
            f"at least ({worst.cell.case.label}, {worst.cell.mode})"
        )
    return "; ".join(parts)


def describe_setup(study: Study) -> list[str]:
    """Return a sentence for each fact that all programs share, and on the GPUs of the blocks if there are several."""
    programs = [list_program_params(job.params) for row in study.rows for job in row.jobs]
    common = [next(iter(values)) for values in labels.collect_words(programs).values() if len(values) == 1]
    whose = "All jobs" if all(map(labels.has_label_params, programs)) else "All jobs but scripts of your own"
    sentences = [f"Only a part of experiment {study.experiment} is shown: {study.choice}."] if study.choice else []
    sentences += [f"{whose}: {', '.join(common)}."] if common else []
    blocks: dict[str, list[int]] = defaultdict(list)
    for block in study.blocks:
        uuid = block.gpu_uuid[: len("GPU-d55853c3")]  # as `nvidia-smi -L` begins
        blocks[f"{block.device} {uuid}".strip()].append(block.number)
    if len(blocks) > 1:
        parts = [f"{_numbers(numbers)} on {gpu}" for gpu, numbers in blocks.items()]
        num_models = len(study.devices)
        models = f" of {num_models} models, each with cells of its own" if num_models > 1 else ""
        sentences.append(f"The blocks ran on {len(blocks)} GPUs{models}: {join_words(parts)}.")
    sentences += study.environments
    for device, differing in hosts.differences(study.rows).items():
        are_apart = any(dict(row.settings).get(hosts.SETTING) for row in study.rows if row.device == device)
        treatment = "are cells of their own (--pool hosts: together)" if are_apart else "count as repeats of each other"
        sentences.append(f"The hosts of {device} differ in {join_words(differing)}; their blocks {treatment}.")
    return sentences


def count_unranked(cells: Sequence[Cell]) -> str:
    """Count the combinations of jobs and mode without a figure, by outcome; empty for none."""
    counts = Counter(cell.finding for cell in cells if not cell.is_derived and not cell.is_ranked)
    endings = {result: words.of_several for result, words in ENDINGS.items() if counts[result] and words.of_several}
    parts = [f"{counts[result]} {words}" for result, words in endings.items()]
    return f"Of all combinations of jobs and mode, {join_words(parts)}; they are shown and not ranked." if parts else ""


def describe_missing(study: Study) -> list[str]:
    """Return what a half-run study lacks and which runs were left out, and why; empty for a complete one."""
    sentences = [
        f"Block {block.number} on {block.device} lacks {block.num_missing} of {block.num_expected} groups."
        if block.num_groups
        else f"Block {block.number} on {block.device} has no group yet."
        for block in study.blocks
        if block.num_missing
    ]
    if study.num_planned is not None and len(study.rows) < study.num_planned:
        sentences.append(
            f"The study is not complete: {len(study.rows)} of {study.num_planned} planned groups have a row."
        )
    return sentences + describe_left_out(study)


def describe_left_out(study: Study) -> list[str]:
    """Return a sentence for each reason why runs of the experiment are not in the report, and how to see them."""
    sentences = [
        f"{'One run was' if number == 1 else f'{number} runs were'} left out ({reason})."
        for reason, number in sorted(study.left_out.items())
    ]
    if study.not_shown:
        more = len(study.not_shown) - _MOST_STUDIES
        names = [*study.not_shown[:_MOST_STUDIES], *([f"{more} older ones"] if more > 0 else [])]
        sentences.append(f"Studies of this experiment without a group here: {join_words(names)}; {STUDY} ID shows one.")
    return sentences


def _devices(study: Study) -> str:
    """Return `one NVIDIA H100 80GB HBM3`, `3 NVIDIA ...`, a simulated one as such."""
    gpus = Counter(device for device, _ in {(row.device, row.gpu_uuid) for row in study.rows})
    simulated = "simulated " if study.is_simulated else ""
    named = [f"{'one' if n == 1 else n} {simulated}{device or 'unknown device'}" for device, n in sorted(gpus.items())]
    return join_words(named)


def _describe_highest_gain(study: Study, together: Sequence[Winner]) -> str:
    best = together[0]
    jobs = _describe_winner(study, best)
    if not _gains(best):
        return f"jobs gain nothing by running together: {times_in_words(best.speedup)} at most, {jobs}"
    gain = f"{jobs} run {times_in_words(best.speedup)} as fast as one after another"
    if best.over_best_solo is not None:
        gain += f", and {times_in_words(best.over_best_solo)} as fast as one at a time in its best step mode"
    return f"{gain}{best.marks}"


def _describe_lowest_gain(study: Study, together: Sequence[Winner]) -> list[str]:
    worst, none = together[-1], [winner for winner in together if not _gains(winner)]
    if len(together) == 1 or len(none) == len(together):
        return []
    if not none:
        return [f"The smallest gain is {times_in_words(worst.speedup)}, {_describe_winner(study, worst)}{worst.marks}."]
    names = [jobs_in_words(winner.case, winner.degree) for winner in none]
    if len(names) <= _MOST_NAMED:
        return [f"Sharing gains nothing for {join_words(names)}."]
    return [f"Sharing gains nothing in {len(none)} of {_cases(len(together))}, such as {names[-1]}."]


def _gains(winner: Winner) -> bool:
    return winner.tied[0] != SERIAL.label and winner.speedup.median >= 1 + MARGIN


def _count_winners(cells: Sequence[Cell], together: Sequence[Winner]) -> list[str]:
    kinds = {cell.mode: cell.sharing.label for cell in cells}
    wins = Counter(_way(kinds.get(winner.mode, winner.mode)) for winner in together if winner.mode is not None)
    first, *runners_up = sorted(wins, key=lambda way: (-wins[way], way)) or [""]
    undecided = len(together) - wins.total()
    if not wins:
        return [f"No mode is told apart from the others in {_cases(len(together))}."]
    if len(wins) == 1 and not undecided:
        return [f"{_capitalise(first)} is fastest in {_cases(len(together), 'all')}."]
    parts = [
        f"{first} is fastest in {wins[first]} of {_cases(len(together))}",
        *(f"{way} in {wins[way]}" for way in runners_up),
    ]
    open_ = [f"in {undecided} no mode is told apart from all others"] if undecided else []
    return [f"{_capitalise('; '.join([join_words(parts), *open_]))}."]


def _cases(number: int, quantifier: str = "") -> str:
    return "the one case of several jobs" if number == 1 else f"{quantifier or 'the'} {number} cases of several jobs"


def _describe_certainty(study: Study, together: Sequence[Winner]) -> str:
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


def _describe_winner(study: Study, winner: Winner) -> str:
    """Return `3 resnet26_cifar10 under MPS`; of tied modes the one with the fastest median."""
    first, *rivals = winner.tied
    jobs = f"{jobs_in_words(winner.case, winner.degree)}{sizes_in_words(study, [winner.case])}"
    way = f"{jobs} {_way(first) if first == SERIAL.label else f'under {first}'}"
    # Where no verdict can be, that is said of all cases.
    is_told = rivals and winner.is_enough
    return f"{way} (not told apart from {join_words([_way(mode) for mode in rivals])})" if is_told else way


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


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _numbers(numbers: Sequence[int]) -> str:
    """Return `1 to 5`, `6 and 7`, `1`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return join_words([str(number) for number in numbers])
