"""A short check, before measuring, that this process computes correct matrix products, convolutions and attention.

A shared GPU can compute wrong values without an error: under some MPS percentages, matrix products in bf16 and fp16 are
wrong, or are not written at all (docs/mps.md). So each kind of result is compared with a reference. The reference is
computed in float64 with elementwise kernels only, because matrix kernels cannot be trusted:

- A product C = AB is checked by Freivalds' method: Cx must equal A(Bx) for a vector x of random signs.
- A convolution is checked similarly: the sum of its output channels with random signs must equal a convolution with one
  output channel.
- Fused attention is checked row by row, for rows from the whole batch. Dropout is switched off, because the reference
  cannot reproduce its random numbers.

Before an output is computed, NaN is written to its memory, so that unwritten elements are detected.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workloads import client, program

# Shapes of checked products: rows, inner dimension, columns. They are those of single vectors, classifiers and
# attention layers, and a large square. Each product is computed with plain and with transposed matrices, as in forward
# and backward passes. The MPS percentage decides which products fail; on an H100, with each faulty percentage at least
# one of these fails (docs/mps.md).
PRODUCTS = (
    (1, 4096, 4096),
    (64, 256, 2048),
    (128, 1024, 1000),
    (1000, 1024, 256),
    (2048, 768, 2304),
    (2048, 2048, 2048),
)
# The tolerance of a check, in units of the expected rounding error. Measured rounding errors were at most 0.3 for
# products on an H100, and 1.3 for steps of models on CPUs. If one bf16 element in a row of 2048 is wrong by its own
# size, the error is about 6.
_TOLERANCE = 4.0
_CHUNK_ELEMENTS = 1 << 22
_ROW_ELEMENTS = 1 << 20  # number of elements of keys, over all checked rows of an attention
_NUM_IMAGES = 2
_ATEN = torch.ops.aten


def check(job: client.NullJob, device: torch.device, dtype: torch.dtype | None, compute: Callable[[], object]) -> None:
    """Check the results of `compute` and, on a GPU, `PRODUCTS` in `dtype` (default: fp32); report wrong results."""
    products, step = Canary(), Canary()
    if device.type == "cuda":
        products.check_products(device, dtype or torch.float32)
    with step.watch():
        compute()
    for description in (*products.wrong, *step.wrong):
        program.report_wrong(job, description)
    job.metric("canary_checked_count", products.num_checked + step.num_checked)
    job.metric("canary_left_out_count", products.num_left_out + step.num_left_out)
    job.metric("canary_s", products.spent_s + step.spent_s)


@dataclass(slots=True)
class Canary:
    """Result checks and their outcome.

    Attributes:
        limit_s: time after which no further result is checked.
        wrong: descriptions of wrong results.
        num_left_out: number of results that were not checked, because of this limit.
    """

    limit_s: float = 1.0
    seed: int = 0
    wrong: list[str] = field(default_factory=list)
    num_checked: int = 0
    num_left_out: int = 0
    spent_s: float = 0.0
    _seen: set[object] = field(default_factory=set)

    def check_products(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the products of `PRODUCTS` in a given precision and check them."""
        generator = torch.Generator(device).manual_seed(self.seed)
        for rows, inner, columns in PRODUCTS:
            a, a_flipped = (_random(shape, device, dtype, generator) for shape in ((rows, inner), (inner, rows)))
            b, b_flipped = (_random(shape, device, dtype, generator) for shape in ((inner, columns), (columns, inner)))
            for factors in ((a, b), (a, b_flipped.T), (a_flipped.T, b)):
                self.run(_ATEN.mm.default, factors, {})

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Check the products, convolutions and attentions that are computed in this context, each shape once.

        Products of backward passes are included. Other gradients are checked only indirectly, because the losses of the
        first steps depend on them.
        """
        with _Watch(self):
            yield

    def run(self, operator: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        """Compute an operator of `aten` and return its result.

        The result is checked if the operator has a check, and if its arguments are of a new kind.
        """
        check = _CHECKS.get(operator)
        kind = (operator, *(_kind(argument) for argument in arguments))
        if check is None or kind in self._seen:
            return operator(*arguments, **options)
        self._seen.add(kind)
        if self.spent_s > self.limit_s:
            self.num_left_out += 1
            return operator(*arguments, **options)
        began = time.monotonic()
        exact = _drop_dropout(operator, arguments, options)
        used, named = exact or (arguments, options)
        result = operator(*used, **named)
        _fill_next(_output(result))
        result = operator(*used, **named)
        error = check(_output(result), *used, **named)
        if exact is not None:
            result = operator(*arguments, **options)
        self.num_checked += 1
        if not error <= _TOLERANCE and not _is_beyond_numbers(operator, arguments):
            self.wrong.append(f"{_name(operator, arguments)}: off by {error:.3g} times the expected rounding error")
        self.spent_s += time.monotonic() - began
        return result


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that passes operators to a canary.

    It is called below autograd and autocast, so types and shapes are final.
    """

    def __init__(self, canary: Canary) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._canary = canary

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._canary.run(func, args, kwargs or {})


def _fill_next(like: Tensor) -> None:
    """Write NaN to the memory that the allocator will use for the next tensor of this size."""
    torch.empty_like(like).fill_(float("nan"))


def _check_addmm(c: Tensor, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> float:
    if alpha != 1 or beta != 1:
        return 0.0
    return _check_bmm(c[None], a[None], b[None], bias.expand_as(c)[None])


def _check_bmm(c: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> float:
    """Check c = ab + bias, [batch, rows, columns], by Freivalds' method; in a large batch, only the first products."""
    if not _is_written(c):
        return float("inf")
    batch = max(1, _CHUNK_ELEMENTS // c[0].numel())
    c, a, b = c[:batch], a[:batch], b[:batch]
    signs = _signs(c.shape[2], c.device)
    got, got_norm = _times(c, signs), _norm(c)
    expected = _times(a, _times(b, signs))
    if bias is not None:
        expected = expected + _times(bias[:batch], signs)
    unit = _rounding(a, allows_tf32=torch.backends.cuda.matmul.allow_tf32) * (
        got_norm + _norm(a) * b.double().norm(dim=(1, 2))[:, None]
    )
    return _largest(got - expected, unit)


def _check_convolution(
    out: Tensor,
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> float:
    """Compare the signed sum of output channels with a convolution by summed weights, for the first and last images."""
    if not _is_written(out):
        return float("inf")
    if transposed or out.ndim != 4:
        return 0.0
    few = torch.cat([images[:_NUM_IMAGES], images[-_NUM_IMAGES:]]).double()
    few = torch.nn.functional.pad(few, (padding[1], padding[1], padding[0], padding[0]))
    got_all = torch.cat([out[:_NUM_IMAGES], out[-_NUM_IMAGES:]]).double()
    signs = _signs(weight.shape[0], out.device)
    got = (got_all * signs[:, None, None]).sum(1)
    if bias is not None:
        got = got - (bias.double() * signs).sum()
    # Output channel o reads only the input channels of its group.
    mixed = (weight.double() * signs[:, None, None, None]).view(groups, -1, *weight.shape[1:]).sum(1).flatten(0, 1)
    expected, energy = torch.zeros_like(got), torch.zeros_like(got)
    height, width = out.shape[2:]
    for y in range(weight.shape[2]):
        for x in range(weight.shape[3]):
            y0, x0 = y * dilation[0], x * dilation[1]
            seen = few[:, :, y0 : y0 + stride[0] * height : stride[0], x0 : x0 + stride[1] * width : stride[1]]
            expected += (seen * mixed[:, y, x][:, None, None]).sum(1)
            energy += (seen * seen).sum(1)
    scale = got_all.norm(dim=1) + energy.sqrt() * weight.double().norm() / groups**0.5
    unit = _rounding(images, allows_tf32=torch.backends.cudnn.allow_tf32) * scale
    return _largest(got - expected, unit)


def _check_attention(operator: Any) -> Callable[..., float]:
    """Return the check of an attention kernel; the kernels' arguments have equal names, but different orders."""

    def check(out: Tensor, *arguments: Any, **options: Any) -> float:
        named = _bind_arguments(operator, arguments, options)
        bias = named.get("attn_mask", named.get("attn_bias"))
        factors = (named["query"], named["key"], named["value"])
        return _attention_error(out, *factors, bias, is_causal=named["is_causal"], scale=named["scale"])

    return check


def _attention_error(
    out: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, is_causal: bool, scale: float | None
) -> float:
    """Compare some rows of softmax(query key^T scale + bias) value, [batch, heads, rows, width], with float64."""
    if not _is_written(out):
        return float("inf")
    batch, heads, num_rows, width = query.shape
    num_keys = key.shape[2]
    count = min(batch * heads * num_rows, max(1, _ROW_ELEMENTS // (num_keys * width)))
    positions = torch.linspace(0, batch * heads * num_rows - 1, count, device=out.device).long()
    at, row = (positions // (heads * num_rows), positions // num_rows % heads), positions % num_rows
    q = query[(*at, row)].double()
    # Several adjacent query heads may share one head of keys and values.
    k, v = (shared[at[0], at[1] * shared.shape[1] // heads].double() for shared in (key, value))
    scale = width**-0.5 if scale is None else scale
    scores = (q[:, None] * k).sum(2) * scale
    if bias is not None:
        added = bias.expand(batch, heads, num_rows, num_keys)[(*at, row)]
        scores = scores.masked_fill(~added, float("-inf")) if added.dtype == torch.bool else scores + added.double()
    if is_causal:
        scores = scores.masked_fill(torch.arange(num_keys, device=out.device) > row[:, None], float("-inf"))
    shares = scores.softmax(1)
    expected, got = (shares[:, :, None] * v).sum(1), out[(*at, row)].double()
    # Rounding errors arise in the scores, which are summed in fp32, and in the shares and the output, which are rounded
    # to the type of the inputs.
    rounding = _rounding(query, allows_tf32=torch.backends.cuda.matmul.allow_tf32)
    in_fp32 = rounding if query.dtype == torch.float32 else _rounding(q, allows_tf32=False)
    in_scores = in_fp32 * q.norm(dim=1) * k.norm(dim=2).amax(1) * scale
    spread = (shares.square() * v.square().sum(2)).sum(1).sqrt()
    unit = rounding * (got.norm(dim=1) + spread) + in_scores * spread
    return _largest((got - expected).norm(dim=1), unit)


def _bind_arguments(operator: Any, arguments: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    declared = operator._schema.arguments
    defaults = {argument.name: argument.default_value for argument in declared}
    return defaults | dict(zip(defaults, arguments, strict=False)) | options


def _drop_dropout(
    operator: Any, arguments: Sequence[Any], options: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]] | None:
    if operator not in _ATTENTIONS or not _bind_arguments(operator, arguments, options)["dropout_p"]:
        return None
    names = [argument.name for argument in operator._schema.arguments]
    exact = [0.0 if name == "dropout_p" else argument for name, argument in zip(names, arguments, strict=False)]
    return exact, options | ({"dropout_p": 0.0} if "dropout_p" in options else {})


def _output(outputs: Any) -> Tensor:
    output: Tensor = outputs if isinstance(outputs, Tensor) else outputs[0]
    return output


_ATTENTIONS = [
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
]
_CHECKS: dict[Any, Callable[..., float]] = {
    **{operator: _check_attention(operator) for operator in _ATTENTIONS},
    _ATEN.mm.default: lambda c, a, b: _check_bmm(c[None], a[None], b[None]),
    _ATEN.addmm.default: _check_addmm,
    _ATEN.bmm.default: _check_bmm,
    _ATEN.convolution.default: _check_convolution,
}


def _random(shape: tuple[int, int], device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, device=device, generator=generator).to(dtype)


def _signs(count: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return (torch.randint(0, 2, (count,), generator=generator) * 2 - 1).to(device, torch.float64)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Multiply matrices [batch, rows, columns] by vectors [columns] or [batch, columns], without a matrix kernel."""
    vector = vector if vector.ndim == 2 else vector[None]
    rows = max(1, _CHUNK_ELEMENTS // (matrix.shape[0] * matrix.shape[2]))
    return torch.cat([(part.double() * vector[:, None]).sum(2) for part in torch.split(matrix, rows, 1)], 1)


def _norm(matrix: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(matrix, dim=2, dtype=torch.float64)
    return length


def _is_written(result: Tensor) -> bool:
    """Return whether every element is a number; in fp16, infinity is allowed, because scaled gradients may overflow."""
    bad = result.isnan() if result.dtype == torch.float16 else ~result.isfinite()
    return not bool(bad.any())


def _rounding(factor: Tensor, *, allows_tf32: bool) -> float:
    """Return the relative rounding error of a matrix's type; for fp32 on a GPU that may use TF32, that of TF32."""
    if factor.dtype == torch.bfloat16:
        return 2.0**-9
    if factor.dtype == torch.float16:
        return 2.0**-11
    # Without TF32, the error of a sum over thousands of terms is larger than the rounding error of one term.
    return 2.0**-11 if factor.is_cuda and allows_tf32 else 2.0**-19


def _is_beyond_numbers(operator: Any, arguments: Sequence[Any]) -> bool:
    """Return whether inputs or sums of products may be infinite, for example because training diverged.

    The GPU may then be right.
    """
    if operator in _ATTENTIONS:
        return not all(bool(tensor.isfinite().all()) for tensor in arguments[:3])
    is_convolution = _CHECKS[operator] is _check_convolution
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    a, b = tensors[:2] if is_convolution else tensors[-2:]
    # A sum of products is at most the product of the norms of its vectors (Cauchy-Schwarz).
    if is_convolution:
        lengths = math.sqrt(b[0].numel()) * float(a.abs().max()), _longest(b.flatten(1), -1)
    else:
        lengths = _longest(a, -1), _longest(b, -2)
    return not math.prod(lengths) <= torch.finfo(a.dtype).max


def _longest(tensor: Tensor, dim: int) -> float:
    return float(torch.linalg.vector_norm(tensor, dim=dim, dtype=torch.float64).max())


def _largest(difference: Tensor, unit: Tensor) -> float:
    """Return the largest difference in units of the expected error.

    Elements with an infinite expected error, which occur in fp16, are ignored.
    """
    ratio = difference.abs() / unit.clamp_min(torch.finfo(torch.float64).tiny)
    return float(ratio[unit.isfinite()].max()) if bool(unit.isfinite().any()) else 0.0


def _kind(argument: Any) -> object:
    if isinstance(argument, Tensor):
        return (argument.dtype, tuple(argument.shape), argument.stride())
    return tuple(argument) if isinstance(argument, list) else argument


def _name(operator: Any, arguments: Sequence[Any]) -> str:
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)][-2:]
    shapes = " by ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
    return f"{operator.overloadpacket.__name__} of {shapes} in {str(tensors[0].dtype).removeprefix('torch.')}"
