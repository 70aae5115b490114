"""The answer of a study: a few sentences, at most four leading numbers, its setup and its missing groups.

Results without a mark lead; if there are none, those with a note do, with `*`. An invalid result is never a number.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from pipeline.base.domain.group_names import list_program_params
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, MEMORY_PEAK, P99_SLOWDOWN, SLOWDOWN, SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, NAIVE, SERIAL
from pipeline.base.system.words import format_count, group_by
from pipeline.report.evaluate import effects
from pipeline.report.evaluate.cells import Case, Cell, label_cases, list_metrics
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity, contrast_with_alone, is_best_solo_serial
from pipeline.report.evaluate.effects import find_serial
from pipeline.report.evaluate.metrics import (
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    HOST_BOUND,
    MEAN_LATENCY,
    P99_LATENCY,
    TOTAL_TIME,
    choose_prefix,
    scale_estimate,
)
from pipeline.report.evaluate.publication import WHOLE_GPU
from pipeline.report.evaluate.services import (
    LATENCIES,
    compare_services,
    describe_fractions,
    describe_limits,
    describe_mixes,
    find_rate_limits,
    list_fractions,
    prefer_latency,
)
from pipeline.report.evaluate.statistics import MARGIN, Estimate, format_times
from pipeline.report.evaluate.stressors import StressorEffect, describe_effects, find_strongest, list_effects
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import (
    ENDINGS,
    INVALID,
    describe_jobs,
    describe_time,
    find_equal_gain,
    join_words,
)
from pipeline.report.figures.drawing import clean_text
from pipeline.report.page.table_format import round_value
from pipeline.report.read import labels, pooling
from pipeline.report.read.selection import STUDY
from pipeline.report.read.study_records import Study

_MOST_STUDIES = 5
_MOST_REASONS = 3
_LONGEST_REASON = 160


def write_answer(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    """Return sentences on the effect of other GPUs, services, MIG and stressors; cases have `describe_cases`."""
    if not study.rows:
        return ["There is no result yet."]
    company = effects.summarize_other_gpus(effects.compare_other_gpus(study, cells))
    clauses = describe_mixes(cells)
    if clauses:
        clauses[0] += describe_sizes(study, {cell.case for cell in cells if cell.case.is_mix})
    if not any(winner.degree > 1 for winner in winners):
        loads = "; ".join(describe_effects(list_effects(study, cells)))
        finding = _describe_services(cells) or _describe_mig(cells) or loads
        clauses = clauses or [finding or "no group of several jobs has a figure and a baseline"]
        clauses[0] = f"{_on(study)}{clauses[0]}"
    return [*company, *describe_fractions(cells), *(f"{_capitalise(clause)}." for clause in clauses)]


def summarize(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> str:
    """Return one sentence: the device, the fastest modes or another finding, and the certainty."""
    if not study.rows:
        return "There is no result yet."
    if study.is_rehearsal:
        ran = sum(row.result is Result.OK for row in study.rows)
        return f"{_on(study)}{ran} of {format_count(len(study.rows), 'group')} ran. A rehearsal measures no speed."
    if not any(cell.values for cell in cells):
        return _describe_failure(study, cells)
    if shares := [*effects.summarize_other_gpus(effects.compare_other_gpus(study, cells)), *describe_fractions(cells)]:
        return shares[0]
    collocated = [winner for winner in winners if winner.degree > 1]
    clauses = describe_effects(list_effects(study, cells))[:1]
    clauses += [_describe_outcome(study, cells, collocated)] if collocated else describe_mixes(cells)[:1]
    finding = next(filter(None, (*clauses, _describe_services(cells), _describe_mig(cells))), "")
    return f"{_on(study)}{finding or 'no group of several jobs has a figure and a baseline'} ({_count_blocks(study)})."


def _describe_failure(study: Study, cells: Sequence[Cell]) -> str:
    """Return a sentence on a study without a valid figure, with the outcomes of its groups and a reason."""
    counts = Counter(cell.finding for cell in cells if not cell.is_derived)
    parts = [f"{counts[result]} {words.plural or words.label}" for result, words in ENDINGS.items() if counts[result]]
    parts += [f"{counts[Result.OK]} {INVALID}"] if counts[Result.OK] else []
    reason = next((reason for cell in cells if (reason := cell.reason or "; ".join(cell.invalid[:1]))), "")
    example = f"; for example: {clean_text(reason, _LONGEST_REASON).rstrip('.')}" if reason else ""
    return f"{_on(study)}no group has a valid result: {join_words(parts)}{example}."


def _describe_services(cells: Sequence[Cell]) -> str:
    if borne := describe_limits(cells):
        return borne
    collocated_cells = [cell for cell in cells if cell.degree > 1 and not cell.is_derived]
    for name, title in ((P99_SLOWDOWN, "p99"), (MEAN_SLOWDOWN, "mean")):
        measured_cells = sorted(
            (c for c in collocated_cells if name in c.figures), key=lambda cell: cell.figures[name].median
        )
        if measured_cells:
            ends = [measured_cells[0], measured_cells[-1]] if len(measured_cells) > 1 else measured_cells
            parts = [f"{format_times(c.estimates[name])} ({describe_jobs(c.case, c.degree)}, {c.mode})" for c in ends]
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
            f"with co-runners on other instances, a job keeps at least {format_times(lowest)} its "
            f"throughput ({besides[0].case.label}, {besides[0].mode})"
        )
    return "; ".join(parts)


def describe_setup(study: Study) -> list[str]:
    """Return sentences on the common settings of all programs, on several GPUs, and on differing hosts."""
    programs = [list_program_params(job.params) for row in study.rows for job in row.jobs]
    common = [next(iter(values)) for values in labels.collect_words(programs).values() if len(values) == 1]
    subject = "All jobs" if all(map(labels.has_label_params, programs)) else "All jobs except your own scripts"
    sentences = [f"This report covers a part of experiment {study.experiment}: {study.choice}."] if study.choice else []
    sentences += [f"{subject}: {', '.join(common)}."] if common else []
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
    for device, differing in pooling.list_host_differences(study.rows).items():
        are_apart = any(dict(row.settings).get(pooling.SETTING) for row in study.rows if row.device == device)
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
    omitted = [f"{len(reasons) - len(shown)} more reasons are in endings.csv."] if len(reasons) > len(shown) else []
    counted = f"Of all combinations of jobs and mode, {join_words(parts)}; they are not ranked."
    return " ".join([counted, *shown, *omitted])


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
        num_omitted = len(study.not_shown) - _MOST_STUDIES
        names = [
            *study.not_shown[:_MOST_STUDIES],
            *([f"{num_omitted} older"] if num_omitted > 0 else []),
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


def _describe_outcome(study: Study, cells: Sequence[Cell], collocated: Sequence[Winner]) -> str:
    """Return the fastest modes; if no verdict names one of several modes, how long the jobs take in the best group."""
    modes = {cell.mode for cell in cells if cell.degree > 1 and cell.sharing != SERIAL and cell.is_compared}
    gains = [cell for cell in cells if cell.mode in modes and cell.is_compared and describe_time(cell)]
    best = _find_highest(gains, SPEEDUP)
    if len(modes) > 1 and any(winner.mode is not None for winner in collocated):
        return _count_winners(cells, collocated)
    if best is None:
        return "no group of several jobs has a plausible speed-up"
    best = find_equal_gain(best, gains) or best
    jobs = f"{describe_jobs(best.case, best.degree)}{describe_sizes(study, [best.case])}"
    clause = f"{jobs} under {best.mode} {describe_time(best)}"
    same = [cell for cell in gains if (cell.case, cell.mode) == (best.case, best.mode)]
    more = [str(cell.degree) for cell in same if cell.degree > best.degree]
    if best.estimates[SPEEDUP].median < 1 + MARGIN:
        clause = f"sharing gains nothing: {clause}"
    elif more:
        clause += f"; {join_words(more)} gain nothing more"
    is_open = len(modes) > 1 and any(winner.is_enough for winner in collocated)
    return f"{clause}; no verdict between {join_words(sorted(modes))}" if is_open else clause


def _count_winners(cells: Sequence[Cell], collocated: Sequence[Winner]) -> str:
    """Return a clause: `MPS is fastest in 8 of the 10 cases with several jobs and naive in 1; ...`."""
    kinds = {cell.mode: cell.sharing.label for cell in cells}
    wins = Counter(kinds.get(winner.mode, winner.mode) for winner in collocated if winner.mode is not None)
    first, *runners_up = sorted(wins, key=lambda mode: (-wins[mode], mode))
    undecided = len(collocated) - wins.total()
    if len(wins) == 1 and not undecided:
        return f"{first} is fastest in {_cases(len(collocated), 'all')}"
    parts = [f"{first} is fastest in {wins[first]} of {_cases(len(collocated))}"]
    parts += [f"{mode} in {wins[mode]}" for mode in runners_up]
    return join_words(parts) + (f"; there is no verdict in {undecided}" if undecided else "")


def _cases(number: int, quantifier: str = "the") -> str:
    return "the one case with several jobs" if number == 1 else f"{quantifier} {number} cases with several jobs"


def _count_blocks(study: Study) -> str:
    complete = Counter(block.device for block in study.blocks if block.num_missing == 0)
    number = min((complete[block.device] for block in study.blocks), default=0)
    blocks = f"{number or 'no'} complete block{'' if number == 1 else 's'}"
    if len(study.devices) > 1:
        blocks += f" of each GPU model{' at least' if len(set(complete.values())) > 1 else ''}"
    return blocks


def describe_sizes(study: Study, cases: Collection[Case]) -> str:
    """Return the workload of each letter in some mixes: ` (L: resnet152_imagenet, S: resnet26_cifar10)`.

    A letter with several workloads is left out, because the table of mixes lists them.
    """
    case_of = label_cases(study)
    workloads: dict[str, set[str]] = defaultdict(set)
    for row in study.rows:
        if row.is_mix and case_of[row.run_id] in cases:
            for job in row.jobs:
                workloads[job.size or ""].add(job.params.get("workload", ""))
    parts = [f"{size}: {names.pop()}" for size, names in sorted(workloads.items()) if size and len(names) == 1]
    return f" ({', '.join(parts)})" if parts else ""


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _numbers(numbers: Sequence[int]) -> str:
    """Return `1 to 5`, `6 and 7`, `1`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return join_words([str(number) for number in numbers])


MOST = 4
"""The highest number of leading numbers."""
TIMES = "\u00d7"
"""The unit of a ratio."""
_GRACT = "gract_mean_ratio"
_EAGER, _CUDA_GRAPH = (labels.format_param_value(labels.STEP_MODE, mode) for mode in ("eager", "cuda_graph"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingNumber:
    """A number in large type.

    Attributes:
        number, unit: `1.36` and `TIMES`, or `12300` and `samples/s`.
        basis: what the number rests on: its 95 % interval and number of blocks, and whether there is no verdict.
        label: the quantity: `the speed of one CUDA graph at a time`.
        jobs: the jobs and their sharing mode.
    """

    number: str
    unit: str
    basis: str
    label: str
    jobs: str


def select_leading_numbers(
    study: Study, cells: Sequence[Cell], verdicts: Sequence[Contrast]
) -> tuple[LeadingNumber, ...]:
    """Return the leading numbers of a study.

    Gains of sharing come first, then services, MIG profiles and the effect of other GPUs. A study without any of them,
    and without stressors, is led by the throughput, energy, memory and activity of one group. Fractions of a GPU have a
    sentence instead, because a number without the state of the rest of the GPU is misleading.
    """
    if study.is_rehearsal or any(list_fractions(cells)):
        return ()
    valid_cells = [cell for cell in cells if not cell.is_derived and cell.is_compared]
    unmarked = [cell for cell in valid_cells if not cell.marks_of_rows]
    return _select_numbers(study, unmarked, cells, verdicts) or tuple(
        dataclasses.replace(number, number=f"{number.number}*")
        for number in _select_numbers(study, valid_cells, cells, verdicts)
    )


def _select_numbers(
    study: Study, valid_cells: Sequence[Cell], cells: Sequence[Cell], verdicts: Sequence[Contrast]
) -> tuple[LeadingNumber, ...]:
    clean = [cell for cell in valid_cells if not cell.has_stressor]
    kinds: tuple[Iterator[LeadingNumber], ...] = (
        _list_gains(clean, cells, verdicts),
        _list_mixed_services(clean),
        _list_services(clean, cells, verdicts),
        _list_profiles(clean),
        _list_other_gpus(study, clean, cells),
        _list_sensitivities(list_effects(study, valid_cells), _count_gpus(valid_cells)),
    )
    is_beside_stressors = any(cell.has_stressor for cell in cells)
    numbers = tuple(itertools.islice(itertools.chain(*kinds), MOST))
    return numbers or (() if is_beside_stressors else tuple(itertools.islice(_list_figures(clean), MOST)))


def _list_gains(clean: Sequence[Cell], cells: Sequence[Cell], verdicts: Sequence[Contrast]) -> Iterator[LeadingNumber]:
    """Yield gains over the best step mode alone, over serial and over naive sharing, and the energy of one of them."""
    collocated_cells = [cell for cell in clean if cell.degree > 1 and cell.sharing != SERIAL and not cell.num_given]
    collocated_cells = [cell for cell in collocated_cells if not _has_noted_baseline(cell, cells)]
    over_best = [cell for cell in collocated_cells if BEST_SOLO in cell.estimates and cell.best_solo != _EAGER]
    best = _find_highest(over_best, BEST_SOLO)
    selected = [best] if best is not None else []
    if best is not None:
        yield _make_gain(best, BEST_SOLO, f"the speed of {_name_best_solo(best)}", verdicts)
    over_serial = [cell for cell in collocated_cells if SPEEDUP in cell.estimates and not cell.notes_on_gain]
    if best is not None:  # over serial, CUDA graphs have the same speed-up as over one CUDA graph
        over_serial = [cell for cell in over_serial if not is_best_solo_serial(cell)]
    if (fastest := _prefer(selected, over_serial) or _find_highest(over_serial, SPEEDUP)) is not None:
        host = ", which also depends on the host" if _depends_on_host(fastest, cells) else ""
        alone = f"the speed of one {_CUDA_GRAPH} at a time" if fastest.uses_cuda_graphs else f"the serial speed{host}"
        yield _make_gain(fastest, SPEEDUP, alone, verdicts)
        selected.append(fastest)
    for name in (ENERGY_VS_BEST_SOLO, ENERGY_VS_ALONE):
        candidates = [cell for cell in collocated_cells if name in cell.estimates]
        cell = _prefer(selected, candidates) or min(candidates, key=lambda c: c.estimates[name].median, default=None)
        if cell is None:
            continue
        against = _name_best_solo(cell) if name == ENERGY_VS_BEST_SOLO else "one job at a time"
        yield _make_gain(cell, name, f"the energy of {against}, for the same work", verdicts)
        break
    yield from _list_over_naive(selected, collocated_cells, verdicts)


def _list_over_naive(
    selected: Sequence[Cell], collocated_cells: Sequence[Cell], verdicts: Sequence[Contrast]
) -> Iterator[LeadingNumber]:
    naive = [(cell.case, cell.degree) for cell in collocated_cells if cell.sharing == NAIVE]
    for cell, pair in itertools.product(selected, verdicts):
        is_speed = (pair.against, pair.quantity) == (NAIVE.label, Quantity.SPEED)
        if pair.cell is cell and is_speed and pair.ratio is not None and (cell.case, cell.degree) in naive:
            yield _make_ratio(pair, "the speed of naive sharing", pair.decision)
            return


def _find_highest(cells: Sequence[Cell], name: str) -> Cell | None:
    return max(cells, key=lambda cell: cell.estimates[name].median, default=None)


def _prefer(selected: Sequence[Cell], candidates: Sequence[Cell]) -> Cell | None:
    """Return the first selected cell that is a candidate, so that the numbers are those of one group."""
    return next((cell for cell in selected if any(cell is other for other in candidates)), None)


def _has_noted_baseline(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Return whether a run alone of a program of the cell, in any step mode, has a note, and the cell has none."""
    if cell.row_notes:
        return False
    programs = [labels.identify_program(params) for params in cell.case.params]
    alone = [other for other in cells if other.sharing == SERIAL and other.row_notes]
    return any(labels.identify_program(params) in programs for other in alone for params in other.case.params)


def _depends_on_host(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Return whether the serial baseline waits for the host: by its listener, or as eager steps that are not fastest.

    Eager steps without a run of another step mode count too, because nothing shows that the GPU limits them.
    """
    serial = find_serial(cell.case, cells)
    if serial is not None and HOST_BOUND in serial.estimates and serial.estimates[HOST_BOUND].median >= 0.5:
        return True
    is_eager = any(params.get(labels.STEP_MODE) == "eager" for params in cell.case.params)
    return is_eager and not (cell.best_solo == _EAGER and is_best_solo_serial(cell))


def _name_best_solo(cell: Cell) -> str:
    return (
        f"one {cell.best_solo} at a time" if cell.best_solo == _CUDA_GRAPH else f"one job at a time ({cell.best_solo})"
    )


def _list_mixed_services(clean: Sequence[Cell]) -> Iterator[LeadingNumber]:
    """Yield throughput, latency and energy of the mix of services and other jobs that keeps the most throughput."""
    by_cell = group_by(compare_services(clean), lambda pair: id(pair.cell)).values()
    throughputs = [([pair for pair in pairs if pair.metric == SLOWDOWN], pairs) for pairs in by_cell]
    lowest = [(min(ratios, key=_median), pairs) for ratios, pairs in throughputs if ratios]
    if not lowest:
        return
    throughput, pairs = max(lowest, key=lambda member: _median(member[0]))
    yield _make_ratio(throughput, "the throughput that the job next to the service has alone")
    if latencies := prefer_latency(pairs):
        title = LATENCIES[latencies[0].metric]
        yield _make_ratio(max(latencies, key=_median), f"the {title} latency that the service has alone")
    if (energy := contrast_with_alone(throughput.cell, ENERGY_VS_ALONE)) is not None:
        yield _make_ratio(energy, "the energy of the same work with each job alone")


def _list_services(
    clean: Sequence[Cell], cells: Sequence[Cell], verdicts: Sequence[Contrast]
) -> Iterator[LeadingNumber]:
    """Yield the highest rates within an objective; without one, the latency of services together against alone."""
    limits = [limit for limit in find_rate_limits(cells) if limit.total and limit.num_rates > 1 and not limit.marks]
    if limits:
        best = max(limits, key=lambda limit: (limit.total or 0, -limit.degree))
        alone = [limit for limit in limits if limit.sharing == SERIAL and limit.what == best.what]
        for limit in [best, *(limit for limit in alone if limit is not best)]:
            jobs = f"{limit.what} alone" if limit.sharing == SERIAL else f"{limit.degree} {limit.what}, {limit.mode}"
            label = f"with a {limit.objective}, the highest of {limit.num_rates} measured rates"
            basis = f"no interval: {format_count(limit.num_blocks, 'block')}"
            yield LeadingNumber(number=f"{limit.total:g}", unit="requests/s", basis=basis, label=label, jobs=jobs)
        return
    collocated_cells = [cell for cell in clean if cell.degree > 1 and not cell.case.is_mix]
    for name, title in ((P99_SLOWDOWN, "p99"), (MEAN_SLOWDOWN, "mean")):
        if measured_cells := [cell for cell in collocated_cells if name in cell.figures]:
            cell = min(measured_cells, key=lambda cell: (-cell.degree, _median(cell.figures[name])))
            yield _make_gain(cell, name, f"the {title} latency of one service alone", verdicts)
            break


def _list_profiles(clean: Sequence[Cell]) -> Iterator[LeadingNumber]:
    """Yield the cost of MIG, the effect of co-runners on other instances, and the lowest gain of a larger profile."""
    places = {(cell.case, effects.find_place(cell)) for cell in clean if cell.degree == 1}
    steps = [s for s in effects.steps(clean) if {(s.pair.case, s.larger), (s.pair.case, s.smaller)} <= places]
    if costs := [step for step in steps if step.loss_pct is not None]:
        yield _make_step(max(costs, key=lambda step: step.median), clean)
    if besides := [pair for pair in effects.compare_co_runners(clean) if pair.cell.sharing == MIG]:
        yield _make_ratio(min(besides, key=_median), "the throughput without co-runners on other instances")
    if scaled := [step for step in steps if step.loss_pct is None and step.ideal]:
        yield _make_step(min(scaled, key=lambda step: step.median / (step.ideal or 1)), clean)


def _make_step(step: effects.ProfileStep, clean: Sequence[Cell]) -> LeadingNumber:
    larger = "the whole GPU" if step.larger == WHOLE_GPU else step.larger
    ideal = f" (ratio of the multiprocessors: {step.ideal:.2f})" if step.ideal else ""
    label, jobs = f"the speed on {step.smaller}{ideal}", f"{step.pair.case.label} on {larger}"
    return _make_number(step.pair.ratio, label, jobs, num_gpus=_count_gpus(_select_case(step.pair.case, clean)))


def _list_other_gpus(study: Study, clean: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[LeadingNumber]:
    """Yield the lowest speed while other GPUs of the host work."""
    pairs = [pair for pair in effects.compare_other_gpus(study, cells) if any(pair.other is cell for cell in clean)]
    if pairs:
        lowest = min(pairs, key=_median)
        reference = effects.find_reference(lowest)
        label = f"the speed while no other GPU works, the lowest of {format_count(len(pairs), 'group')}"
        num_gpus = _count_gpus(_select_case(reference.case, clean))
        yield _make_number(lowest.ratio, label, _name_group(reference), num_gpus=num_gpus)


def _list_sensitivities(effects: Sequence[StressorEffect], num_gpus: int) -> Iterator[LeadingNumber]:
    """Yield the highest slowdown of each workload beside a stressor, in each mode."""
    for effect in find_strongest(effects):
        if effect.sensitivity is not None and effect.sensitivity.median > 1 + MARGIN:
            label = f"the time alone, beside its worst stressor: {effect.resource}, dial {effect.dial:g}"
            yield _make_number(effect.sensitivity, label, f"{effect.workload}, {effect.mode}", num_gpus=num_gpus)


def _list_figures(clean: Sequence[Cell]) -> Iterator[LeadingNumber]:
    """Yield throughput, latency, energy, memory and activity of the group with the highest throughput, or memory."""

    def names(cell: Cell) -> list[str]:
        work = [] if cell.case.is_mix else [cell.throughput]  # work of different jobs cannot be added
        speed = [P99_LATENCY, MEAN_LATENCY] if cell.num_given else [*work, TOTAL_TIME]
        first = [name for name in speed if name in cell.figures][:1]
        energy = [] if cell.case.is_mix else [cell.energy]
        return [*first, *(name for name in (*energy, MEMORY_PEAK, _GRACT) if name in cell.figures)]

    def rank(cell: Cell) -> tuple[int, float]:
        order = [name for name in names(cell) if name in (cell.throughput, MEMORY_PEAK)]
        return (-len(order), -_median(cell.figures[order[0]])) if order else (0, 0.0)

    metrics = list_metrics(clean)
    for cell in sorted((cell for cell in clean if names(cell)), key=rank)[:1]:
        for name in names(cell):
            metric, estimate = metrics[name], cell.figures[name]
            scale, prefix = choose_prefix([estimate.median], metric.unit)
            unit, scaled = f"{prefix}{metric.unit}", scale_estimate(estimate, scale)
            yield _make_number(scaled, metric.title, _name_group(cell), unit, num_gpus=_count_gpus([cell]))


def _make_gain(cell: Cell, name: str, label: str, verdicts: Sequence[Contrast]) -> LeadingNumber:
    """Make a number from the comparison of a cell with a baseline, by the metric of this comparison."""
    matches = (
        pair
        for pair in verdicts
        if (pair.case, pair.degree, pair.mode, pair.metric) == (cell.case, cell.degree, cell.mode, name)
        and (pair.against == SERIAL.label or pair.is_against_best_solo)
    )
    verdict, gain = next(matches, None), contrast_with_alone(cell, name)
    assert gain is not None  # the cell has this figure
    return _make_ratio(gain, label, None if verdict is None else verdict.decision)


def _make_ratio(pair: Contrast, label: str, decision: Decision | None = None) -> LeadingNumber:
    num_gpus = _count_gpus([pair.cell])
    return _make_number(pair.ratio, label, _name_group(pair.cell), num_gpus=num_gpus, decision=decision)


def _make_number(
    estimate: Estimate | None,
    label: str,
    jobs: str,
    unit: str | None = None,
    *,
    num_gpus: int = 1,
    decision: Decision | None = None,
) -> LeadingNumber:
    """Make a number from an estimate; without a unit it is a ratio."""
    assert estimate is not None
    form: Callable[[float], str] = "{:.2f}".format if unit is None else round_value
    basis = _describe_basis(estimate, form, num_gpus, decision)
    return LeadingNumber(
        number=form(estimate.median), unit=TIMES if unit is None else unit, basis=basis, label=label, jobs=jobs
    )


def _describe_basis(estimate: Estimate, form: Callable[[float], str], num_gpus: int, decision: Decision | None) -> str:
    """Return `1.34 to 1.38 (5 blocks)`, `6.40 to 8.12 (no verdict: 3 blocks)` or `no verdict: 2 blocks`."""
    counted = format_count(estimate.n, "GPU" if num_gpus > 1 else "block")
    outcome = decision.value if decision in (Decision.NO_VERDICT, Decision.EQUAL) else ""
    if estimate.low is None or estimate.high is None:
        return f"{outcome or 'no interval'}: {counted}"
    basis = f"{outcome}: {counted}" if outcome else counted
    is_exact = estimate.low == estimate.high
    return basis if is_exact else f"{form(estimate.low)} to {form(estimate.high)} ({basis})"


def _name_group(cell: Cell) -> str:
    return f"{describe_jobs(cell.case, cell.degree)}, {cell.mode}"


def _count_gpus(cells: Sequence[Cell]) -> int:
    return len({gpu for cell in cells for gpu in cell.gpus.values()})


def _select_case(case: Case, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.case == case]


def _median(figure: Estimate | Contrast) -> float:
    estimate = figure.ratio if isinstance(figure, Contrast) else figure
    assert estimate is not None
    return estimate.median
