"""The summary of a study on the terminal, with the sentences of its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.system.words import group_by
from pipeline.observe.group_result import GroupResult
from pipeline.report.evaluate import effects
from pipeline.report.evaluate.cells import label_cases, make_cells
from pipeline.report.evaluate.contrasts import Contrast, Quantity, compare_modes
from pipeline.report.evaluate.services import compare_services, describe_mix
from pipeline.report.evaluate.stressors import describe_effects, list_effects
from pipeline.report.evaluate.verdicts import Winner, describe_details, winners
from pipeline.report.page.frameworks import format_frameworks
from pipeline.report.read.result_rows import make_study_of_results


@dataclass(frozen=True, slots=True)
class StudySummary:
    """The findings of a study.

    Attributes:
        fastest: keys of the fastest groups of cases with several sharing modes; none on a simulated GPU.
        notes: notes on gains, by the key of the group.
        sentences: sentences on the cases, the frameworks and the other GPUs.
    """

    fastest: frozenset[str] = frozenset()
    notes: Mapping[str, str] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()


def summarize_study(experiment: str, rows: Sequence[GroupResult]) -> StudySummary:
    """Summarize the rows of a study: the fastest groups, notes on gains, and a sentence for each case."""
    study = make_study_of_results(experiment, rows)
    cells = make_cells(study)
    comparisons = compare_modes(cells)
    best = {(winner.case, winner.degree): winner for winner in winners(cells, comparisons)}
    # The table of groups prints why the other comparisons have no ratio.
    with_figure = [verdict for verdict in comparisons if verdict.degree > 1 and verdict.ratio is not None]
    by_case = group_by(with_figure, lambda verdict: (verdict.case, verdict.degree))
    sentences = [" ".join(filter(None, _sentences(best.get(place), members))) for place, members in by_case.items()]
    mixes = group_by(compare_services(cells), lambda pair: (pair.case, pair.mode))
    sentences += [describe_mix(pairs) for pairs in mixes.values()]
    simulated = " (simulated)" if study.is_simulated else ""
    sentences += [f"{clause}{simulated}." for clause in describe_effects(list_effects(study, cells))]
    sentences += format_frameworks(study)
    sentences += effects.summarize_other_gpus(effects.compare_other_gpus(study, cells))
    cases = label_cases(study)
    places = {row.key: ((cases[row.run_id], row.degree), row.mode) for row in study.rows}
    of_place = {((cell.case, cell.degree), cell.mode): cell for cell in cells}
    num_modes = Counter(place for (place, _), cell in of_place.items() if cell.sharing != SERIAL and cell.is_compared)
    fastest = {
        key
        for key, (place, mode) in places.items()
        if place in best
        and (place[1] > 1 and num_modes[place] > 1)
        and best[place].tied[0] == mode
        and not (of_place[place, mode].marks or study.is_simulated)
    }
    on_gain = {place_and_mode: "; ".join(cell.notes_on_gain) for place_and_mode, cell in of_place.items()}
    notes = {key: on_gain[place_and_mode] for key, place_and_mode in places.items() if on_gain.get(place_and_mode)}
    return StudySummary(frozenset(fastest), notes, tuple(sentences))


def _sentences(winner: Winner | None, comparisons: Sequence[Contrast]) -> list[str]:
    by_quantity = group_by(comparisons, lambda verdict: verdict.quantity)
    if winner is None:  # no baseline, or services at a given rate
        return [verdict.sentence for verdict in by_quantity.get(Quantity.SPEED, comparisons)]
    if winner.mode not in (None, SERIAL.label):
        return [winner.sentence]
    sharing_modes = [mode for mode in winner.tied if mode != SERIAL.label] or [verdict.mode for verdict in comparisons]
    gain = [
        verdict.sentence
        for verdict in by_quantity.get(Quantity.SPEED, [])
        if (verdict.mode, verdict.against) == (sharing_modes[0], SERIAL.label)
    ]
    details = describe_details(comparisons, sharing_modes[0])
    # If there is no verdict against serial either, the sentence on the gain is enough.
    if winner.mode is None and SERIAL.label in winner.tied:
        return [*gain, details]
    return [winner.sentence, *gain, *([details] if sharing_modes[0] != winner.tied[0] else [])]
