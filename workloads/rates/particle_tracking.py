"""Tracking of particles through a ring of magnets by drifts and kicks: a symplectic map with invariants.

A turn has several equal cells. A cell has a focusing and a defocusing thin quadrupole, each followed by a drift. In
6-D, the drift depends on a particle's momentum and slope, and a cavity kicks once per turn; in 4-D, all particles have
the same momentum. Each sub-step is the exact map of a term of the Hamiltonian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CELLS, STRENGTH, DRIFT = 8, 0.6, 1.0
"""Cells per turn, inverse focal length in 1/m, and drift length in m; the phase advance is 35 degrees per cell."""

SLIPPAGE, CAVITY = 1.0, 4e-4
"""Phase slip per turn for a relative momentum of 1, and the kick of the cavity; the tune is 0.003."""

_AMPLITUDES = (1e-4, 1e-4, 1e-4, 1e-4, 5e-3, 1e-4)
"""Amplitudes of x (m), px, y (m), py, zeta (rad) and delta. They are small, so in 6-D the planes are nearly
uncoupled."""

_BLOCK, _NUM_WARPS, _LOOKED_AT = 256, 4, 4096
_Plane = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """The constants of the ring, in the form in which the kernel uses them."""

    strength: float = STRENGTH
    drift: float = DRIFT
    slippage: float = SLIPPAGE
    cavity: float = CAVITY

    def invariants(self) -> tuple[_Plane, _Plane, _Plane]:
        """Return a, b, c of each plane, such that a q^2 + 2 b q p + c p^2 is the same after each turn.

        The invariance is exact in 4-D; in 6-D, small terms couple the planes. Source: Courant and Snyder, Annals of
        Physics 3 (1958): the Twiss parameters of the linear map.
        """
        focus, defocus = ((1.0, 0.0, sign * self.strength, 1.0) for sign in (-1, 1))
        drift = (1.0, self.drift, 0.0, 1.0)
        horizontal = _times(drift, _times(defocus, _times(drift, focus)))
        vertical = _times(drift, _times(focus, _times(drift, defocus)))
        along = _times((1.0, 0.0, self.cavity, 1.0), (1.0, -self.slippage, 0.0, 1.0))
        return _invariant(horizontal), _invariant(vertical), _invariant(along)


def _times(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, float, float, float]:
    a, b, c, d = first
    e, f, g, h = second
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def _invariant(matrix: tuple[float, float, float, float]) -> _Plane:
    a, b, c, d = matrix
    sine = math.copysign(math.sqrt(1 - ((a + d) / 2) ** 2), b)
    return -c / sine, (a - d) / 2 / sine, b / sine


def track(state: Tensor, lattice: Lattice, turns: int, *, is_6d: bool) -> None:
    """Track particles in place.

    `state` is [6, particles]: x, px, y, py, zeta, delta. In 4-D, zeta and delta do not change.
    """
    x, px, y, py, zeta, delta = state
    for _ in range(turns):
        drift = lattice.drift / (1 + delta) if is_6d else torch.full_like(delta, lattice.drift)
        half_path = drift / (1 + delta) / 2
        for sign in (1, -1) * CELLS:
            px -= sign * lattice.strength * x
            py += sign * lattice.strength * y
            x += drift * px
            y += drift * py
            if is_6d:
                zeta -= half_path * (px * px + py * py)
        if is_6d:
            zeta -= lattice.slippage * delta
            delta += lattice.cavity * torch.sin(zeta)


class Tracking:
    """Particles that go round the ring for some turns per call. The work unit is particle turns.

    A particle is wrong if one of its invariants has changed since the start. A program of the kernel is wrong if it did
    not count every turn.
    """

    def __init__(self, particles: int, turns: int, dtype: torch.dtype, device: torch.device, *, is_6d: bool) -> None:
        self._lattice, self._turns, self._is_6d = Lattice(), turns, is_6d
        amplitudes = torch.tensor(_AMPLITUDES, dtype=dtype, device=device)[:, None]
        self._start = amplitudes * torch.randn(6, particles, dtype=dtype, device=device).clamp(-3, 3)
        if not is_6d:
            self._start[4:] = 0
        self._state = self._start.clone()
        self._constants = torch.tensor(
            [self._lattice.strength, self._lattice.drift, self._lattice.slippage, self._lattice.cavity],
            dtype=dtype,
            device=device,
        )
        self._done = torch.zeros(-(-particles // _BLOCK), dtype=torch.int64, device=device)
        self._expected = 0
        self._tolerance = 0.05 if is_6d else 1e-2 if dtype == torch.float32 else 1e-6
        self.work = float(particles * turns)
        self._must_be = self._invariants(self._start)

    def begin(self) -> None:
        self._state.copy_(self._start)
        self._done.zero_()
        self._expected = 0

    def call(self) -> None:
        if self._state.is_cuda:
            self._run_on_gpu()
        else:
            track(self._state, self._lattice, self._turns, is_6d=self._is_6d)
            self._done += self._turns
        self._expected += self._turns

    def count_wrong(self) -> Tensor:
        change = (self._invariants(self._state) - self._must_be).abs()
        changed = ~(change <= self._tolerance * self._scale()).all(dim=0)  # NaN counts as wrong
        return changed.sum() + (self._done != self._expected).sum()

    def difference(self) -> float:
        """Return the largest difference, after one call, from fp64 on the CPU, relative to the amplitudes."""
        self.begin()
        self.call()
        first = self._state[:, :_LOOKED_AT].cpu().double()
        must_be = self._start[:, :_LOOKED_AT].cpu().double()
        track(must_be, self._lattice, self._turns, is_6d=self._is_6d)
        difference = (first - must_be).abs() / torch.tensor(_AMPLITUDES, dtype=torch.float64)[:, None]
        return float(difference.max())

    def _scale(self) -> Tensor:
        """Return the scale for changes of invariants [planes, particles]: a particle's value plus the plane's mean."""
        return self._must_be + self._must_be.mean(dim=1, keepdim=True)

    def _invariants(self, state: Tensor) -> Tensor:
        planes = [
            a * q * q + 2 * b * q * p + c * p * p
            for (a, b, c), (q, p) in zip(
                self._lattice.invariants(), state[:, :_LOOKED_AT].reshape(3, 2, -1), strict=True
            )
        ]
        return torch.stack(planes if self._is_6d else planes[:2])

    def _run_on_gpu(self) -> None:
        from workloads.rates import kernels

        kernels.track[(len(self._done),)](
            self._state,
            self._constants,
            self._done,
            self._state.shape[1],
            self._turns,
            cells=CELLS,
            is_6d=self._is_6d,
            block=_BLOCK,
            num_warps=_NUM_WARPS,
        )
