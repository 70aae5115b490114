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
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.services import compare_services, describe_mix
from pipeline.report.evaluate.stressors import describe_effects, list_effects
from pipeline.report.evaluate.verdicts import describe_cases, has_too_few_blocks, winners
from pipeline.report.page.frameworks import format_frameworks
from pipeline.report.read.result_rows import make_study_of_results


@dataclass(frozen=True, slots=True)
class StudySummary:
    """The findings of a study.

    Attributes:
        fastest: keys of the fastest groups of cases with several sharing modes.
        notes: notes on gains, by the key of the group.
        sentences: sentences on the cases, the frameworks and the other GPUs.
        has_too_few_blocks: whether a case is open only because of them.
    """

    fastest: frozenset[str] = frozenset()
    notes: Mapping[str, str] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    has_too_few_blocks: bool = False


def summarize_study(experiment: str, rows: Sequence[GroupResult]) -> StudySummary:
    """Summarize the rows of a study: the fastest groups, notes on gains, and a sentence for each case.

    A rehearsal has only the answers of frameworks, which are no speeds.
    """
    study = make_study_of_results(experiment, rows)
    if study.is_rehearsal:
        return StudySummary(sentences=tuple(format_frameworks(study)))
    cells = make_cells(study)
    comparisons = compare_modes(cells)
    best = {(winner.case, winner.degree): winner for winner in winners(cells, comparisons)}
    sentences = describe_cases(cells, comparisons, best.values())
    if study.rows and not any(cell.values for cell in cells) and any(cell.invalid for cell in cells):
        sentences.append("No figure is valid (*), so there is no answer; remove the cause and measure again.")
    mixes = group_by(compare_services(cells), lambda pair: (pair.case, pair.mode))
    sentences += [describe_mix(pairs) for pairs in mixes.values()]
    sentences += [f"{clause}." for clause in describe_effects(list_effects(study, cells))]
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
        and not of_place[place, mode].marks
    }
    on_gain = {place_and_mode: "; ".join(cell.notes_on_gain) for place_and_mode, cell in of_place.items()}
    notes = {key: on_gain[place_and_mode] for key, place_and_mode in places.items() if on_gain.get(place_and_mode)}
    return StudySummary(frozenset(fastest), notes, tuple(sentences), has_too_few_blocks(best.values()))
