"""The answer of a study in a few sentences, with sentences on the setup and on missing groups."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from pipeline.base.domain.group_names import list_program_params
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, SERIAL
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import effects
from pipeline.report.evaluate.cells import Case, Cell, label_cases
from pipeline.report.evaluate.services import describe_fractions, describe_limits, describe_mixes
from pipeline.report.evaluate.statistics import MARGIN, MIN_FOR_INTERVAL, MIN_GPUS, times_in_words
from pipeline.report.evaluate.stressors import describe_effects, list_effects
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import ENDINGS, INVALID, jobs_in_words, join_words
from pipeline.report.figures.drawing import clean_text
from pipeline.report.read import hosts, labels
from pipeline.report.read.selection import STUDY
from pipeline.report.read.study_records import Study

_MOST_STUDIES = 5
_MOST_NAMED = 2
_MOST_REASONS = 3
_LONGEST_REASON = 160


def write_answer(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    """Return the answer of the report: the effect of other GPUs, the speed-up of sharing, and its certainty."""
    if not study.rows:
        return ["There is no result yet."]
    company = effects.summarize_other_gpus(effects.compare_other_gpus(study, cells))
    return [*company, *describe_fractions(cells), *_describe_sharing(study, cells, winners)]


def summarize(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> str:
    """Return one sentence: the device, the fastest modes or another finding, and the certainty."""
    if not study.rows:
        return "There is no result yet."
    if not any(cell.values for cell in cells):
        return _describe_failure(study, cells)
    if shares := [*effects.summarize_other_gpus(effects.compare_other_gpus(study, cells)), *describe_fractions(cells)]:
        return shares[0]
    together = [winner for winner in winners if winner.degree > 1]
    clauses = describe_effects(list_effects(study, cells))[:1]
    clauses += [_count_winners(cells, together)] if together else describe_mixes(cells)[:1]
    finding = next(filter(None, (*clauses, _describe_services(cells), _describe_mig(cells))), "")
    certainty = _describe_certainty(study, together)
    certainty = f"{certainty[:1].lower()}{certainty[1:]}"
    return f"{_on(study)}{finding or 'no group of several jobs has a figure and a baseline'} ({certainty})."


def _describe_failure(study: Study, cells: Sequence[Cell]) -> str:
    """Return a sentence on a study without a valid figure, with the outcomes of its groups and a reason."""
    counts = Counter(cell.finding for cell in cells if not cell.is_derived)
    parts = [f"{counts[result]} {words.plural or words.label}" for result, words in ENDINGS.items() if counts[result]]
    parts += [f"{counts[Result.OK]} {INVALID}"] if counts[Result.OK] else []
    reason = next((reason for cell in cells if (reason := cell.reason or "; ".join(cell.invalid[:1]))), "")
    such = f"; for example: {clean_text(reason, _LONGEST_REASON).rstrip('.')}" if reason else ""
    return f"{_on(study)}no group has a valid result: {join_words(parts)}{such}."


def _describe_sharing(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    together = sorted((w for w in winners if w.degree > 1), key=lambda winner: -winner.speedup.median)
    mixed = describe_mixes(cells)
    if mixed:
        mixed[0] += sizes_in_words(study, {cell.case for cell in cells if cell.case.is_mix})
    on = _on(study)
    if together:
        lines = [
            f"{on}{_describe_highest_gain(study, together)}.",
            *_describe_energy(together[0]),
            *_describe_lowest_gain(study, together),
            f"{_capitalise(_count_winners(cells, together))}.",
        ]
        return [*lines, f"{_describe_certainty(study, together)}.", *(f"{_capitalise(clause)}." for clause in mixed)]
    if mixed:
        return [f"{on}{mixed[0]}.", *(f"{_capitalise(clause)}." for clause in mixed[1:])]
    if clause := _describe_services(cells) or _describe_mig(cells):
        return [f"{on}{clause}."]
    if effects := describe_effects(list_effects(study, cells)):
        return [f"{on}{'; '.join(effects)}."]
    return [f"{on}no group of several jobs has a figure and a baseline."]


def _describe_services(cells: Sequence[Cell]) -> str:
    if borne := describe_limits(cells):
        return borne
    together = [cell for cell in cells if cell.degree > 1 and not cell.is_derived]
    for name, title in ((P99_SLOWDOWN, "p99"), (MEAN_SLOWDOWN, "mean")):
        known = sorted((c for c in together if name in c.figures), key=lambda cell: cell.figures[name].median)
        if known:
            ends = [known[0], known[-1]] if len(known) > 1 else known
            parts = [f"{times_in_words(c.estimates[name])} ({jobs_in_words(c.case, c.degree)}, {c.mode})" for c in ends]
            return (
                f"the {title} latency of services that run together is {' to '.join(parts)} that of one service alone"
            )
    return ""


def _describe_mig(cells: Sequence[Cell]) -> str:
    losses = [(step.loss_pct, step) for step in effects.steps(cells) if step.loss_pct is not None]
    losses.sort(key=lambda loss: loss[0])
    besides = sorted(
        (pair for pair in effects.compare_co_runners(cells) if pair.cell.sharing == MIG), key=lambda pair: pair.gain
    )
    parts = []
    if losses:
        ends = [losses[0], losses[-1]] if len(losses) > 1 else losses
        words = [f"{abs(pct):.1f} % {'slower' if pct > 0 else 'faster'} ({end.pair.case.label})" for pct, end in ends]
        parts.append(f"on {losses[0][1].smaller} a job is {' to '.join(words)} than on the whole GPU")
    if besides and (lowest := besides[0].ratio) is not None:
        parts.append(
            f"with co-runners on other instances, a job keeps at least {times_in_words(lowest)} its "
            f"throughput ({besides[0].case.label}, {besides[0].mode})"
        )
    return "; ".join(parts)


def describe_setup(study: Study) -> list[str]:
    """Return sentences on the common settings of all programs, on several GPUs, and on differing hosts."""
    programs = [list_program_params(job.params) for row in study.rows for job in row.jobs]
    common = [next(iter(values)) for values in labels.collect_words(programs).values() if len(values) == 1]
    whose = "All jobs" if all(map(labels.has_label_params, programs)) else "All jobs except your own scripts"
    sentences = [f"This report covers a part of experiment {study.experiment}: {study.choice}."] if study.choice else []
    sentences += [f"{whose}: {', '.join(common)}."] if common else []
    blocks: dict[str, list[int]] = defaultdict(list)
    for block in study.blocks:
        uuid = block.gpu_uuid[: len("GPU-d55853c3")]  # the beginning of the UUID as `nvidia-smi -L` prints it
        blocks[f"{block.device} {uuid}".strip()].append(block.number)
    if len(blocks) > 1:
        parts = [f"{_numbers(numbers)} on {gpu}" for gpu, numbers in blocks.items()]
        num_models = len(study.devices)
        models = f" of {num_models} models, which are not pooled" if num_models > 1 else ""
        sentences.append(f"The blocks ran on {len(blocks)} GPUs{models}: {join_words(parts)}.")
    sentences += study.environments
    for device, differing in hosts.differences(study.rows).items():
        are_apart = any(dict(row.settings).get(hosts.SETTING) for row in study.rows if row.device == device)
        treatment = "are not pooled (--pool hosts pools them)" if are_apart else "are pooled"
        sentences.append(f"The hosts of {device} differ in {join_words(differing)}; their blocks {treatment}.")
    return sentences


def count_unranked(cells: Sequence[Cell]) -> str:
    """Return a sentence that counts the combinations of jobs and mode without a figure, by outcome; with reasons."""
    unranked = [cell for cell in cells if not cell.is_derived and not cell.is_ranked]
    counts = Counter(cell.finding for cell in unranked)
    endings = {result: words.plural for result, words in ENDINGS.items() if counts[result] and words.plural}
    parts = [f"{counts[result]} {words}" for result, words in endings.items()]
    if not parts:
        return ""
    # Only a group that did not run needs a reason here; that of another one is in its row.
    reasons = dict.fromkeys(
        f"{cell.sharing.label}: {cell.reason.rstrip('.')}."
        for cell in unranked
        if cell.finding is Result.SKIPPED and cell.reason
    )
    shown = [*itertools.islice(reasons, _MOST_REASONS)]
    more = [f"{len(reasons) - len(shown)} more reasons are in endings.csv."] if len(reasons) > len(shown) else []
    counted = f"Of all combinations of jobs and mode, {join_words(parts)}; they are not ranked."
    return " ".join([counted, *shown, *more])


def describe_missing(study: Study) -> list[str]:
    """Return sentences on missing groups and on runs that were left out; empty for a complete study."""
    sentences = [
        f"Block {block.number} on {block.device} lacks {block.num_missing} of {block.num_expected} groups."
        if block.num_groups
        else f"Block {block.number} on {block.device} has no group yet."
        for block in study.blocks
        if block.num_missing
    ]
    if study.num_planned is not None and len(study.rows) < study.num_planned:
        sentences.append(
            f"The study is incomplete: {len(study.rows)} of {study.num_planned} planned groups have a row."
        )
    return sentences + describe_left_out(study)


def describe_left_out(study: Study) -> list[str]:
    """Return sentences on the figures, runs and studies of the experiment that are not in the report."""
    sentences = [
        f"{'One run was' if number == 1 else f'{number} runs were'} left out ({reason})."
        for reason, number in sorted(study.left_out.items())
    ]
    sentences += study.not_drawn
    if study.not_shown:
        more = len(study.not_shown) - _MOST_STUDIES
        names = [
            *study.not_shown[:_MOST_STUDIES],
            *([f"{more} older"] if more > 0 else []),
        ]
        sentences.append(f"Studies of this experiment that are not shown: {join_words(names)}; {STUDY} ID shows one.")
    return sentences


def _on(study: Study) -> str:
    """Return the beginning of a sentence: `On one NVIDIA H100 80GB HBM3, `."""
    return f"On {_devices(study)}, "


def _devices(study: Study) -> str:
    """Return `one NVIDIA H100 80GB HBM3`, `3 NVIDIA ...`, `one simulated NVIDIA ...`."""
    gpus = Counter(device for device, _ in {(row.device, row.gpu_uuid) for row in study.rows})
    simulated = "simulated " if study.is_simulated else ""
    named = [f"{'one' if n == 1 else n} {simulated}{device or 'unknown device'}" for device, n in sorted(gpus.items())]
    return join_words(named)


def _describe_highest_gain(study: Study, together: Sequence[Winner]) -> str:
    best = together[0]
    jobs = _describe_winner(study, best)
    if not _gains(best):
        return f"sharing gains nothing: at most {times_in_words(best.speedup)} the serial speed, with {jobs}"
    gain = f"{jobs} reach {times_in_words(best.speedup)} the serial speed"
    if best.over_best_solo is not None:
        step_mode = f"the best step mode ({best.best_solo})"
        gain += f", and {times_in_words(best.over_best_solo)} the speed of one job at a time in {step_mode}"
    return f"{gain}{best.marks}"


def _describe_energy(winner: Winner) -> list[str]:
    parts = [f"{times_in_words(ratio)} that of {against}" for against, ratio in winner.energies.items()]
    return [f"For the same work, their energy is {join_words(parts)}."] if parts and _gains(winner) else []


def _describe_lowest_gain(study: Study, together: Sequence[Winner]) -> list[str]:
    worst, none = together[-1], [winner for winner in together if not _gains(winner)]
    if len(together) == 1 or len(none) == len(together):
        return []
    if not none:
        jobs = f"{_describe_winner(study, worst)}{worst.marks}"
        return [f"The smallest speed-up is {times_in_words(worst.speedup)}, with {jobs}."]
    names = [jobs_in_words(winner.case, winner.degree) for winner in none]
    if len(names) <= _MOST_NAMED:
        return [f"Sharing gains nothing for {join_words(names)}."]
    return [f"Sharing gains nothing in {len(none)} of {_cases(len(together))}, such as {names[-1]}."]


def _gains(winner: Winner) -> bool:
    return winner.tied[0] != SERIAL.label and winner.speedup.median >= 1 + MARGIN


def _count_winners(cells: Sequence[Cell], together: Sequence[Winner]) -> str:
    """Return a clause: `MPS is fastest in 8 of the 10 cases with several jobs and naive in 1; ...`."""
    kinds = {cell.mode: cell.sharing.label for cell in cells}
    wins = Counter(kinds.get(winner.mode, winner.mode) for winner in together if winner.mode is not None)
    first, *runners_up = sorted(wins, key=lambda mode: (-wins[mode], mode)) or [""]
    undecided = len(together) - wins.total()
    if not wins:
        return f"there is no verdict on the fastest mode in {_cases(len(together))}"
    if len(wins) == 1 and not undecided:
        return f"{first} is fastest in {_cases(len(together), 'all')}"
    parts = [f"{first} is fastest in {wins[first]} of {_cases(len(together))}"]
    parts += [f"{mode} in {wins[mode]}" for mode in runners_up]
    return join_words(parts) + (f"; there is no verdict in {undecided}" if undecided else "")


def _cases(number: int, quantifier: str = "the") -> str:
    return "the one case with several jobs" if number == 1 else f"{quantifier} {number} cases with several jobs"


def _describe_certainty(study: Study, together: Sequence[Winner]) -> str:
    complete = Counter(block.device for block in study.blocks if block.num_missing == 0)
    number = min((complete[block.device] for block in study.blocks), default=0)
    blocks = "One complete block" if number == 1 else f"{number or 'No'} complete blocks"
    if len(study.devices) > 1:
        blocks += f" of each GPU model{' at least' if len(set(complete.values())) > 1 else ''}"
    num_open = sum(not winner.is_enough for winner in together)
    gpus = max((winner.num_gpus for winner in together), default=1)
    if num_open == len(together):
        if 1 < gpus < MIN_GPUS:
            return f"Each of the {gpus} GPUs counts once; a verdict needs {MIN_GPUS} GPUs"
        if number < MIN_FOR_INTERVAL:
            return f"{blocks}; intervals need {MIN_FOR_INTERVAL}, verdicts {MIN_BLOCKS}"
        is_enough = not together and number >= MIN_BLOCKS
        return blocks if is_enough else f"{blocks}; a verdict needs {MIN_BLOCKS} blocks"
    sure = f"{blocks}; intervals are 95 %, verdicts are corrected for all comparisons"
    sure += ", and each GPU counts once" if gpus > 1 else ""
    return f"{sure}; {format_count(num_open, 'case')} with too few blocks or GPUs for a verdict" if num_open else sure


def _describe_winner(study: Study, winner: Winner) -> str:
    """Return `3 resnet26_cifar10 under MPS`; if modes are tied, name the mode with the best median."""
    first, *rivals = winner.tied
    jobs = f"{jobs_in_words(winner.case, winner.degree)}{sizes_in_words(study, [winner.case])} under {first}"
    # `_describe_certainty` reports too few blocks for any verdict.
    return f"{jobs} (no verdict against {join_words(rivals)})" if rivals and winner.is_enough else jobs


def sizes_in_words(study: Study, cases: Collection[Case]) -> str:
    """Return the workload of each letter in some mixes: ` (L: resnet152_imagenet, S: resnet26_cifar10)`.

    A letter with several workloads is left out, because the table of mixes lists them.
    """
    case_of = label_cases(study)
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
