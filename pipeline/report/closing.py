"""What the terminal says of a study when it ends, in the words of its report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.base.domain.modes import SERIAL
from pipeline.observe.group_result import GroupResult
from pipeline.report.evaluate import other_gpus
from pipeline.report.evaluate.beside import Shared, sentence, shared
from pipeline.report.evaluate.cells import Case, cases_of, cells_of
from pipeline.report.evaluate.verdicts import Verdict, Winner, verdicts, winners
from pipeline.report.page.frameworks import framework_lines
from pipeline.report.read.ended import study_that_ended


@dataclass(frozen=True, slots=True)
class Closing:
    """The findings of a study.

    Attributes:
        fastest: the `key` of the groups that are the fastest of their case.
        notes: what the interval of a group's gain says, by the `key` of the group.
        sentences: a line for each case.
    """

    fastest: frozenset[str] = frozenset()
    notes: Mapping[str, str] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()


def closing(experiment: str, rows: Sequence[GroupResult]) -> Closing:
    """What the rows of a study say of jobs that ran together."""
    study = study_that_ended(experiment, rows)
    cells = cells_of(study)
    found = verdicts(cells)
    best = {(winner.case, winner.degree): winner for winner in winners(cells, found)}
    by_case: dict[tuple[Case, int], list[Verdict]] = defaultdict(list)
    for verdict in found:
        if verdict.degree > 1 and verdict.ratio is not None:  # the table says why another has no figure
            by_case[verdict.case, verdict.degree].append(verdict)
    sentences = [" ".join(_sentences(best.get(place), here)) for place, here in by_case.items()]
    mixes: dict[tuple[Case, str], list[Shared]] = defaultdict(list)
    for each in shared(cells):
        mixes[each.cell.case, each.cell.mode].append(each)
    sentences += [sentence(each) for each in mixes.values()]
    sentences += framework_lines(study)
    sentences += other_gpus.in_short(other_gpus.kept(study))
    cases = cases_of(study)
    places = {row.key: ((cases[row.run_id], row.degree), row.mode) for row in study.rows}
    fastest = {
        key for key, (place, mode) in places.items() if place[1] > 1 and place in best and best[place].tied[0] == mode
    }
    on_gain = {((cell.case, cell.degree), cell.mode): "; ".join(cell.notes_on_gain) for cell in cells}
    notes = {key: on_gain[there] for key, there in places.items() if on_gain.get(there)}
    return Closing(frozenset(fastest), notes, tuple(sentences))


def _sentences(winner: Winner | None, found: Sequence[Verdict]) -> list[str]:
    if winner is None:  # without a baseline
        return [verdict.sentence for verdict in found]
    if winner.mode not in (None, SERIAL.label):
        return [winner.sentence]
    together = [mode for mode in winner.tied if mode != SERIAL.label] or [verdict.mode for verdict in found]
    gain = [verdict.sentence for verdict in found if (verdict.mode, verdict.against) == (together[0], SERIAL.label)]
    # Of modes that are not told apart from serial either, the gain says so.
    return gain if winner.mode is None and SERIAL.label in winner.tied else [winner.sentence, *gain]
