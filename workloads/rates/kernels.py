"""Triton kernels for NVIDIA GPUs: multiply-adds, reads of a table, products on tensor cores, tracking of particles.

Triton is part of GPU builds of torch. With `TRITON_INTERPRET=1`, all kernels except packed ones (inline PTX) also run
on a CPU.
"""

# Triton reads the annotations of these functions: only `tl.constexpr` is allowed.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def multiply_add(
    out, factor, summand, rounds, dtype: tl.constexpr, packed: tl.constexpr, block: tl.constexpr, unrolled: tl.constexpr
):
    """Write to `out[i]` the number x after some steps, each of which replaces x by x * factor + summand.

    The first x is (i % 1024) / 1024. There are `rounds * unrolled + 1` steps: `unrolled` in each round, and one more.
    `out` has [programs * block] elements of `dtype`: fp16, fp32 or fp64. If `packed`, two fp16 elements share a
    register and an instruction, which doubles the rate.
    """
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = ((index % 1024).to(tl.float32) / 1024.0).to(dtype)
    a = tl.full((block,), factor, dtype)
    b = tl.full((block,), summand, dtype)
    if packed:
        # Add 0, so that each pair of constants is in a separate register. If all pairs shared a register, one of the
        # two units for pairs would be idle: an H200 then reached 66 TFLOP/s, half of its peak.
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
def read_table(out, table, first, rounds, last, is_cached: tl.constexpr, block: tl.constexpr):
    """Write to `out[program]` the sum of `rounds * block` elements of `table`.

    In each round, the programs read one block after another, from block `first` on; after the end of the table, they
    begin again. `last` is the last index of `table`, an fp32 table whose length is a power of two and a multiple of
    `block`. With `is_cached`, L1 caches the table, else only L2 does. The sum is exact if the elements are 1.
    """
    program = tl.program_id(0)
    total = tl.zeros((block,), tl.float32)
    for step in range(rounds):
        index = ((first + program + step * tl.num_programs(0)) * block) & last
        if is_cached:
            total += tl.load(table + index + tl.arange(0, block), cache_modifier=".ca")
        else:
            total += tl.load(table + index + tl.arange(0, block), cache_modifier=".cg")
    tl.store(out + program, tl.sum(total))


@triton.jit
def multiply_blocks(out, lhs, rhs, rounds, rows: tl.constexpr, inner: tl.constexpr, columns: tl.constexpr):
    """Write to `out[program]` the sums of the rows of `rounds` times `lhs @ rhs`, added up product by product.

    `lhs` is [rows, inner], `rhs` is [inner, columns], `out` is [programs, rows] of fp32. The sums are exact if the
    elements are small integers.
    """
    row, column = tl.arange(0, rows), tl.arange(0, columns)
    between = tl.arange(0, inner)
    a = tl.load(lhs + row[:, None] * inner + between[None, :])
    b = tl.load(rhs + between[:, None] * columns + column[None, :])
    total = tl.zeros((rows, columns), tl.float32)
    for _round in range(rounds):
        total = tl.dot(a, b, total)
    tl.store(out + tl.program_id(0) * rows + row, tl.sum(total, 1))


@triton.jit
def track(state, lattice, done, num_particles, turns, cells: tl.constexpr, is_6d: tl.constexpr, block: tl.constexpr):
    """Track each particle for some turns in place, like `particle_tracking.track`, and count the turns of each program.

    `state` is [6, num_particles] of fp32 or fp64: x, px, y, py, zeta, delta. `lattice` is [4] of the same type:
    strength of a quadrupole, length of a drift, slippage, amplitude of the cavity. Each program tracks `block`
    particles and adds the number of turns to its element of `done`, [programs] of int64. In 6-D, particles also move
    along the bunch.
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
