"""The canary: right results pass in every precision, and each way of being wrong is seen."""

from __future__ import annotations

import pytest
import torch

from workloads.training import canary
from workloads.training.canary import Canary

CPU = torch.device("cpu")
MM, CONVOLUTION = torch.ops.aten.mm.default, torch.ops.aten.convolution.default
PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(canary, "PRODUCTS", ((1, 256, 256), (300, 128, 200), (64, 512, 96)))


def spoiled(operator, spoil):
    """Like an operator of aten that computes it and then spoils the result."""

    def compute(*arguments, **options):
        result = operator(*arguments, **options)
        spoil(result)
        return result

    return compute


@pytest.fixture
def spoil(monkeypatch):
    """Let an operator compute wrong results: its check is found, and it is not the real one that is called."""

    def replace(operator, how):
        wrong = spoiled(operator, how)
        wrong.overloadpacket = operator.overloadpacket
        monkeypatch.setitem(canary._CHECKS, wrong, canary._CHECKS[operator])
        return wrong

    return replace


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_right_products_pass(dtype):
    checked = Canary(limit_s=60)
    checked.check_products(CPU, dtype)
    assert checked.wrong == []
    assert checked.num_checked == 3 * len(canary.PRODUCTS)
    assert checked.num_left_out == 0


@pytest.mark.parametrize(
    "how",
    [
        lambda c: c[64:128, 64:128].zero_(),
        lambda c: c[5:6].fill_(float("nan")),
        lambda c: c[7, 9].add_(100),
        lambda c: c.copy_(c.roll(1, 0)),
        lambda c: c.mul_(1.05),
    ],
    ids=["a tile", "unwritten", "one element", "rows moved", "scaled"],
)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_wrong_product_is_seen(spoil, how, dtype):
    torch.manual_seed(0)
    checked = Canary(limit_s=60)
    a, b = torch.randn(300, 256, dtype=torch.float32).to(dtype), torch.randn(256, 200).to(dtype)
    checked.run(spoil(MM, how), (a, b), {})
    (what,) = checked.wrong
    assert what.startswith(f"mm of 300x256 by 256x200 in {str(dtype).removeprefix('torch.')}: off by")


LAYERS = {
    "plain": torch.nn.Conv2d(8, 16, 3, padding=1),
    "strided": torch.nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
    "dilated": torch.nn.Conv2d(8, 16, 3, dilation=2, padding=(2, 1)),
    "pointwise": torch.nn.Conv2d(8, 32, 1, stride=2),
    "grouped": torch.nn.Conv2d(8, 16, 3, groups=4, padding=1),
    "depthwise": torch.nn.Conv2d(8, 8, 5, groups=8, padding=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_right_convolutions_pass_and_wrong_ones_do_not(spoil, name):
    torch.manual_seed(0)
    layer, images = LAYERS[name], torch.randn(6, 8, 15, 17)
    right = Canary(limit_s=60)
    with right.watch():
        layer(images)
    assert (right.num_checked, right.wrong) == (1, [])
    wrong = Canary(limit_s=60)
    numbers = (layer.stride, layer.padding, layer.dilation)
    arguments = (images, layer.weight, layer.bias, *map(list, numbers), False, [0, 0], layer.groups)
    with torch.no_grad():
        wrong.run(spoil(CONVOLUTION, lambda out: out[0, :, 3:5].zero_()), arguments, {})
    assert len(wrong.wrong) == 1


def test_a_training_step_is_watched_in_both_directions_and_comes_out_as_it_would():
    def step(watched: Canary | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        images = torch.randn(4, 3, 8, 8)
        if watched is None:
            model(images).sum().backward()
        else:
            with watched.watch():
                model(images).sum().backward()
        return model[2].weight.grad

    checked = Canary(limit_s=60)
    assert torch.equal(step(checked), step(None))
    # A convolution and a linear layer forward; the two products of the linear layer's gradients backward.
    assert checked.num_checked == 4
    assert checked.wrong == []


def test_each_shape_is_checked_once_and_no_longer_than_allowed():
    a = torch.randn(8, 8)
    checked = Canary(limit_s=60)
    for _ in range(3):
        checked.run(MM, (a, a), {})
    assert checked.num_checked == 1
    late = Canary(limit_s=-1)
    for matrix in (a, a, a.double()):
        late.run(MM, (matrix, matrix), {})
    assert (late.num_checked, late.num_left_out) == (0, 2)


def test_an_overflow_of_fp16_is_no_fault():
    a = torch.full((4, 64), 300.0, dtype=torch.float16)
    checked = Canary()
    assert checked.run(MM, (a, a.T.contiguous()), {}).isinf().all()
    assert (checked.num_checked, checked.wrong) == (1, [])


def test_an_unwritten_product_of_one_row_in_fp16_is_a_fault(spoil):
    checked = Canary(limit_s=60)
    factors = torch.randn(1, 4096).half(), torch.randn(4096, 4096).half()
    checked.run(spoil(MM, lambda result: result.fill_(float("nan"))), factors, {})
    assert len(checked.wrong) == 1


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_a_training_that_diverged_is_no_fault_of_the_gpu(value):
    checked = Canary(limit_s=60)
    factor = torch.full((64, 64), value)
    checked.run(MM, (factor, factor), {})
    images, weight = torch.full((4, 3, 8, 8), value), torch.full((5, 3, 3, 3), value)
    checked.run(CONVOLUTION, (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {})
    assert (checked.num_checked, checked.wrong) == (2, [])


def test_large_numbers_are_checked_all_the_same(spoil):
    checked = Canary(limit_s=60)
    wrong = spoil(MM, lambda result: result[0].fill_(float("nan")))
    checked.run(wrong, (torch.full((64, 64), 1e15), torch.full((64, 64), 1e15)), {})
    assert len(checked.wrong) == 1


ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "of paddings": {"attn_mask": (torch.arange(24) < 17)[None, None, None]},
    "added": {"attn_mask": torch.zeros(1, 1, 1, 24).masked_fill(torch.arange(24) > 16, -3e38)},
}


def factors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 4, 24, 16).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_right_attention_passes(mask, dtype):
    options = {key: v.to(dtype) if getattr(v, "dtype", None) == torch.float32 else v for key, v in MASKS[mask].items()}
    checked = Canary(limit_s=60)
    with checked.watch():
        torch.nn.functional.scaled_dot_product_attention(*factors(dtype), **options)
    assert (checked.num_checked, checked.wrong) == (1, [])


@pytest.mark.parametrize("num_keys", [1, 2])
def test_attention_whose_heads_share_keys_is_checked(num_keys):
    query, key, value = factors()
    checked = Canary(limit_s=60)
    with checked.watch():
        shared = key[:, :num_keys], value[:, :num_keys]
        torch.nn.functional.scaled_dot_product_attention(query, *shared, enable_gqa=True)
    assert (checked.num_checked, checked.wrong) == (1, [])


@pytest.mark.parametrize(
    "how",
    [
        lambda out: out[2, 3].zero_(),
        lambda out: out[1, 2, 5].fill_(float("nan")),
        lambda out: out.copy_(out.roll(1, 2)),
        lambda out: out[:, :, ::2].mul_(1.1),
        lambda out: out[0, 1, 20, 3].add_(1),
    ],
    ids=["a head", "unwritten", "rows moved", "scaled", "one element"],
)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_wrong_attention_is_seen(spoil, how, dtype):
    checked = Canary(limit_s=60)
    checked.run(spoil(ATTENTION, lambda result: how(result[0])), factors(dtype), {})
    (what,) = checked.wrong
    assert "scaled_dot_product" in what and "off by" in what


def test_a_mask_that_is_passed_over_is_seen(monkeypatch):
    def unmasked(*arguments, **_):
        return ATTENTION(*arguments)

    unmasked.overloadpacket = ATTENTION.overloadpacket
    monkeypatch.setitem(canary._CHECKS, unmasked, canary._CHECKS[ATTENTION])
    for options in (MASKS["causal"], MASKS["of paddings"], MASKS["added"]):
        checked = Canary(limit_s=60)
        checked.run(unmasked, factors(), options)
        assert len(checked.wrong) == 1


def test_attention_with_dropout_is_checked_without_and_used_with_it(monkeypatch):
    dropout_rates = []

    def chancy(*arguments):
        dropout_rates.append(arguments[3])
        out, *rest = ATTENTION(*arguments[:3])
        return (torch.nn.functional.dropout(out, arguments[3]), *rest)

    chancy.overloadpacket, chancy._schema = ATTENTION.overloadpacket, ATTENTION._schema
    monkeypatch.setitem(canary._CHECKS, chancy, canary._CHECKS[ATTENTION])
    monkeypatch.setattr(canary, "_ATTENTIONS", [*canary._ATTENTIONS, chancy])
    checked = Canary(limit_s=60)
    used = checked.run(chancy, (*factors(), 0.5), {})[0]
    assert (checked.num_checked, checked.wrong) == (1, [])
    assert dropout_rates == [0.0, 0.0, 0.5] and (used == 0).float().mean() > 0.3
