"""Triton's kernels: chains of fused multiply-adds on CUDA cores, and the tracking of particles. For NVIDIA GPUs only.

Triton comes with torch for GPUs. Its interpreter (`TRITON_INTERPRET=1`) runs all of them on a CPU but what is packed.
"""

# Triton reads the annotations of these functions itself: only `tl.constexpr` may stand there.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def multiply_add(
    out, factor, summand, rounds, dtype: tl.constexpr, packed: tl.constexpr, block: tl.constexpr, unrolled: tl.constexpr
):
    """Write x * factor + summand, applied `rounds * unrolled + 1` times to x = (i % 1024) / 1024, to `out[i]`.

    `out` has [programs * block] elements of `dtype`: fp16, fp32 or fp64. If `packed`, two elements of fp16 share a
    register and an instruction, which makes twice as many a cycle. A round has `unrolled` steps.
    """
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = ((index % 1024).to(tl.float32) / 1024.0).to(dtype)
    a = tl.full((block,), factor, dtype)
    b = tl.full((block,), summand, dtype)
    if packed:
        # Each pair in a register of its own: with one that all share, one of the two units that take pairs stays idle,
        # and an H200 made 66 TFLOP/s, half of its peak. What is added is 0.
        a += x * 0.0
        b += x * 0.0
    for _round in range(rounds):
        for _step in tl.static_range(unrolled):
            if packed:
                x = tl.inline_asm_elementwise(
                    "fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", [x, a, b], dtype=tl.float16, is_pure=True, pack=2
                )
            else:
                x = tl.fma(x, a, b)
    tl.store(out + index, tl.fma(x, a, b))


@triton.jit
def track(state, lattice, done, num_particles, turns, cells: tl.constexpr, is_6d: tl.constexpr, block: tl.constexpr):
    """Track each particle for some turns in place, as `tracking.track` does, and count these for each program.

    `state` is [6, num_particles] of fp32 or fp64: x, px, y, py, zeta, delta; `lattice` [4] of the same: strength of a
    quadrupole, length of a drift, slippage, amplitude of the cavity. The turns are added to `done`, [programs] of
    int64. A program tracks `block` particles. In 6-D they also move along the bunch.
    """
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_particle = index < num_particles
    strength, length = tl.load(lattice), tl.load(lattice + 1)
    slippage, amplitude = tl.load(lattice + 2), tl.load(lattice + 3)
    x = tl.load(state + index, mask=is_particle, other=0.0)
    px = tl.load(state + num_particles + index, mask=is_particle, other=0.0)
    y = tl.load(state + 2 * num_particles + index, mask=is_particle, other=0.0)
    py = tl.load(state + 3 * num_particles + index, mask=is_particle, other=0.0)
    zeta = tl.load(state + 4 * num_particles + index, mask=is_particle, other=0.0)
    delta = tl.load(state + 5 * num_particles + index, mask=is_particle, other=0.0)
    for _turn in range(turns):
        if is_6d:
            drift = length / (1.0 + delta)
            half_path = 0.5 * drift / (1.0 + delta)
        else:
            drift = length
            half_path = length
        for _cell in tl.static_range(cells):
            px = tl.fma(-strength, x, px)
            py = tl.fma(strength, y, py)
            x = tl.fma(drift, px, x)
            y = tl.fma(drift, py, y)
            if is_6d:
                zeta = tl.fma(-half_path, tl.fma(px, px, py * py), zeta)
            px = tl.fma(strength, x, px)
            py = tl.fma(-strength, y, py)
            x = tl.fma(drift, px, x)
            y = tl.fma(drift, py, y)
            if is_6d:
                zeta = tl.fma(-half_path, tl.fma(px, px, py * py), zeta)
        if is_6d:
            zeta = tl.fma(-slippage, delta, zeta)
            delta = tl.fma(amplitude, tl.sin(zeta), delta)
    tl.store(state + index, x, mask=is_particle)
    tl.store(state + num_particles + index, px, mask=is_particle)
    tl.store(state + 2 * num_particles + index, y, mask=is_particle)
    tl.store(state + 3 * num_particles + index, py, mask=is_particle)
    if is_6d:
        tl.store(state + 4 * num_particles + index, zeta, mask=is_particle)
        tl.store(state + 5 * num_particles + index, delta, mask=is_particle)
    program = tl.program_id(0)
    tl.store(done + program, tl.load(done + program) + turns)
