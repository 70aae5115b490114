"""The leading numbers of a report: at most four, each with a label, for the first screen of the page.

Only results without a mark lead: a result that figures and tables show with `*` or as invalid is never among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, MEMORY_PEAK, P99_SLOWDOWN, SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import MIG, NAIVE, SERIAL
from pipeline.base.system.grouping import group_by
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import effects
from pipeline.report.evaluate.cells import Case, Cell, list_metrics
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
    find_rate_limits,
    list_fractions,
    prefer_latency,
)
from pipeline.report.evaluate.statistics import MARGIN, Estimate
from pipeline.report.evaluate.stressors import (
    StressorEffect,
    find_strongest,
    list_effects,
)
from pipeline.report.evaluate.wording import jobs_in_words
from pipeline.report.page.table_format import round_value
from pipeline.report.read import labels
from pipeline.report.read.study_records import Study

MOST = 4
"""The highest number of leading numbers."""
TIMES = "\u00d7"
"""The unit of a ratio."""
_GRACT = "gract_mean_ratio"
_EAGER, _CUDA_GRAPH = (labels.value_in_words(labels.STEP_MODE, mode) for mode in ("eager", "cuda_graph"))


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
    if any(list_fractions(cells)):
        return ()
    right = [cell for cell in cells if not cell.is_derived and cell.is_compared and not cell.marks_of_rows]
    clean = [cell for cell in right if not cell.has_stressor]
    kinds: tuple[Iterator[LeadingNumber], ...] = (
        _list_gains(clean, cells, verdicts),
        _list_mixed_services(clean),
        _list_services(clean, cells, verdicts),
        _list_profiles(clean),
        _list_other_gpus(study, clean, cells),
        _list_sensitivities(list_effects(study, right), _count_gpus(right)),
    )
    is_beside_stressors = any(cell.has_stressor for cell in cells)
    numbers = tuple(itertools.islice(itertools.chain(*kinds), MOST))
    return numbers or (() if is_beside_stressors else tuple(itertools.islice(_list_figures(clean), MOST)))


def _list_gains(clean: Sequence[Cell], cells: Sequence[Cell], verdicts: Sequence[Contrast]) -> Iterator[LeadingNumber]:
    """Yield gains over the best step mode alone, over serial and over naive sharing, and the energy of one of them."""
    together = [cell for cell in clean if cell.degree > 1 and cell.sharing != SERIAL and not cell.num_given]
    together = [cell for cell in together if not _has_noted_baseline(cell, cells)]
    over_best = [cell for cell in together if BEST_SOLO in cell.estimates and cell.best_solo != _EAGER]
    best = _find_highest(over_best, BEST_SOLO)
    chosen = [best] if best is not None else []
    if best is not None:
        yield _make_gain(best, BEST_SOLO, f"the speed of {_name_best_solo(best)}", verdicts)
    over_serial = [cell for cell in together if SPEEDUP in cell.estimates and not cell.notes_on_gain]
    if best is not None:  # over serial, CUDA graphs have the same speed-up as over one CUDA graph
        over_serial = [cell for cell in over_serial if not is_best_solo_serial(cell)]
    if (fastest := _prefer(chosen, over_serial) or _find_highest(over_serial, SPEEDUP)) is not None:
        host = ", which also depends on the host" if _depends_on_host(fastest, cells) else ""
        alone = f"the speed of one {_CUDA_GRAPH} at a time" if fastest.uses_cuda_graphs else f"the serial speed{host}"
        yield _make_gain(fastest, SPEEDUP, alone, verdicts)
        chosen.append(fastest)
    for name in (ENERGY_VS_BEST_SOLO, ENERGY_VS_ALONE):
        known = [cell for cell in together if name in cell.estimates]
        if (cell := _prefer(chosen, known) or min(known, key=lambda c: c.estimates[name].median, default=None)) is None:
            continue
        against = _name_best_solo(cell) if name == ENERGY_VS_BEST_SOLO else "one job at a time"
        yield _make_gain(cell, name, f"the energy of {against}, for the same work", verdicts)
        break
    yield from _list_over_naive(chosen, together, verdicts)


def _list_over_naive(
    chosen: Sequence[Cell], together: Sequence[Cell], verdicts: Sequence[Contrast]
) -> Iterator[LeadingNumber]:
    naive = [(cell.case, cell.degree) for cell in together if cell.sharing == NAIVE]
    for cell, pair in itertools.product(chosen, verdicts):
        is_speed = (pair.against, pair.quantity) == (NAIVE.label, Quantity.SPEED)
        if pair.cell is cell and is_speed and pair.ratio is not None and (cell.case, cell.degree) in naive:
            yield _make_ratio(pair, "the speed of naive sharing", pair.decision)
            return


def _find_highest(cells: Sequence[Cell], name: str) -> Cell | None:
    return max(cells, key=lambda cell: cell.estimates[name].median, default=None)


def _prefer(chosen: Sequence[Cell], known: Sequence[Cell]) -> Cell | None:
    """Return the first chosen cell that is among the known ones, so that the numbers are those of one group."""
    return next((cell for cell in chosen if any(cell is other for other in known)), None)


def _has_noted_baseline(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Return whether a run alone of a program of the cell, in any step mode, has a note."""
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
    lowest = [(min(kept, key=_median), pairs) for kept, pairs in throughputs if kept]
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
    together = [cell for cell in clean if cell.degree > 1 and not cell.case.is_mix]
    for name, title in ((P99_SLOWDOWN, "p99"), (MEAN_SLOWDOWN, "mean")):
        if known := [cell for cell in together if name in cell.figures]:
            cell = min(known, key=lambda cell: (-cell.degree, _median(cell.figures[name])))
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

    known = list_metrics(clean)
    for cell in sorted((cell for cell in clean if names(cell)), key=rank)[:1]:
        for name in names(cell):
            metric, estimate = known[name], cell.figures[name]
            scale, prefix = choose_prefix([estimate.median], metric.unit)
            unit, scaled = f"{prefix}{metric.unit}", scale_estimate(estimate, scale)
            yield _make_number(scaled, metric.title, _name_group(cell), unit, num_gpus=_count_gpus([cell]))


def _make_gain(cell: Cell, name: str, label: str, verdicts: Sequence[Contrast]) -> LeadingNumber:
    """Make a number from the comparison of a cell with a baseline, by the metric of this comparison."""
    known = (
        pair
        for pair in verdicts
        if (pair.case, pair.degree, pair.mode, pair.metric) == (cell.case, cell.degree, cell.mode, name)
        and (pair.against == SERIAL.label or pair.is_against_best_solo)
    )
    verdict, gain = next(known, None), contrast_with_alone(cell, name)
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
    return f"{jobs_in_words(cell.case, cell.degree)}, {cell.mode}"


def _count_gpus(cells: Sequence[Cell]) -> int:
    return len({gpu for cell in cells for gpu in cell.gpus.values()})


def _select_case(case: Case, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.case == case]


def _median(figure: Estimate | Contrast) -> float:
    estimate = figure.ratio if isinstance(figure, Contrast) else figure
    assert estimate is not None
    return estimate.median
