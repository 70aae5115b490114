"""The inference program, in this process and on CPUs."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch

from tests.support.training import Notebook
from workloads import infer, program
from workloads.program import UsageError
from workloads.serving import inference
from workloads.serving.arrivals import Request
from workloads.serving.options import Infer

DIGITS = ["--source", "digits", "--image-px", "8", "--num-classes", "10", "--no-channels-last"]
NETWORK = ["--model", "resnetv2_50", "--model-args", "layers=[1,1]", "channels=[8,16]", "stem_chs=8", "stem_type="]
TEXT = ["--library", "transformers", "--num-classes", "2", "--sequence-tokens", "8"]
BERT = [*TEXT, "--model", "bert", "--model-args", "hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2"]
GPT = [*TEXT, "--model", "gpt2", "--output-tokens", "4", "--model-args", "n_embd=16", "n_layer=1", "n_head=2"]
GEMMA_TEXT = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
GEMMA_TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 12}
GEMMA_SIGHT = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
GEMMA_ARGS = [f"text_config={json.dumps(GEMMA_TEXT)}", f"vision_config={json.dumps(GEMMA_SIGHT)}"]
GEMMA = [*TEXT, "--model", "gemma3", "--model-args", *GEMMA_ARGS]
BY_HAND = ["--threads", "1", "--device", "cpu", "--requests", "20"]


class RecordingNotebook(Notebook):
    """A job by hand that remembers its requests too."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[int, ...]] = []
        self.outputs: list[float] = []

    def request(self, *instants: int) -> None:
        self.requests.append(instants)

    def metric(self, name: str, value: float, step: int = 0) -> None:
        if name == "first_output_norm":
            self.outputs.append(value)
        super().metric(name, value, step)


def ask(*flags: str) -> RecordingNotebook:
    job, threads = RecordingNotebook(), torch.get_num_threads()
    try:
        infer.run(program.parse(Infer, [*BY_HAND, *flags]), job)
    finally:
        torch.set_num_threads(threads)
    return job


@pytest.mark.parametrize(
    "flags",
    [
        [*NETWORK, *DIGITS],
        [*NETWORK, *DIGITS, "--batch-size", "3", "--outstanding", "5", "--max-batch", "4"],
        [*NETWORK, *DIGITS, "--arrival", "poisson", "--rate-per-s", "400"],
        [*NETWORK, "--image-px", "16", "--num-classes", "10", "--precision", "bf16"],
        [*BERT, "--batch-size", "2"],
        [*BERT, "vocab_size=50"],
        GEMMA,
        [*GEMMA, "--output-tokens", "4"],
        [*BERT, "--serve", "http", "--outstanding", "3", "--max-batch", "2"],
        [*NETWORK, "--image-px", "16", "--num-classes", "10", "--precision", "bf16", "--serve", "http"],
    ],
)
def test_every_request_is_answered_rightly(flags):
    job = ask(*flags, "--epochs", "2")
    assert len(job.requests) >= 40
    assert job.wrongs == []
    assert job.canary["canary_checked_count"] > 0
    assert [number for number, *_ in job.epochs] == [1, 2]
    for intended, sent, begun, done, *_ in job.requests:
        assert 0 < intended <= sent <= begun < done
    assert len(job.outputs) == inference.NUM_INPUTS
    assert len(set(job.outputs)) == inference.NUM_INPUTS, "requests differ"


def test_a_model_sees_requests_of_any_number_in_one_kind_of_tensor():
    # A compiled model is compiled anew, within the window, for a tensor that begins elsewhere in its memory.
    seen: list[tuple[int, int]] = []

    def forward(batch: torch.Tensor) -> torch.Tensor:
        seen.append((len(batch), batch.storage_offset()))
        return batch

    values = torch.arange(8.0).reshape(8, 1)
    inputs = inference.Inputs.arrange(values, 1, 3, torch.device("cpu"))
    service = inference.Inference(forward, inputs, values, torch.device("cpu"))
    for count in (1, 3, 2, 3, 1):
        service.wait(service.issue([Request(0, 0)] * count))
    assert seen == [(1, 0), (3, 0), (2, 0), (3, 0), (1, 0)]
    assert service.describe_wrong_answers("fp32") == []


def test_a_decoder_has_a_first_token_and_others(monkeypatch):
    job = ask(*GPT, "--outstanding", "2", "--max-batch", "2")
    assert job.wrongs == []
    for _, _, begun, done, first, tokens, batch in job.requests:
        assert begun < first < done
        assert (tokens, batch) == (4, 2)


@pytest.mark.parametrize(
    ("flags", "ahead"),
    [
        (["--outstanding", "4"], 4),
        (["--outstanding", "4", "--serve", "http"], 1),
        (["--arrival", "poisson", "--rate-per-s", "9"], 1),
        ([*GPT, "--outstanding", "4"], 1),
    ],
)
def test_only_what_several_clients_asked_is_issued_before_the_answer_before_is_there(flags, ahead):
    args = program.parse(Infer, [*NETWORK[:2], *flags])
    assert infer._limit_ahead(args, args.outstanding, torch.device("cuda", 0)) == ahead
    assert infer._limit_ahead(args, args.outstanding, torch.device("cpu")) == 1


def test_equal_jobs_say_the_same():
    first, again, other = (ask(*NETWORK, *DIGITS, "--seed", seed).outputs for seed in ("0", "0", "1"))
    assert first == again != other


def test_an_answer_that_goes_wrong_in_the_run_is_reported(monkeypatch):
    calls, issue = 0, inference.Inference.issue

    def spoiled(self, batch):
        nonlocal calls
        calls += 1
        issued = issue(self, batch)
        if calls == 40:  # of the run, after 20 of the warm-up and one more
            self._answers[(self._next - 1) % inference.NUM_INPUTS] *= 1.1
        return issued

    monkeypatch.setattr(inference.Inference, "issue", spoiled)
    job = ask(*NETWORK, *DIGITS)
    assert len(job.wrongs) == 1
    assert "is off by 0.1 of the reference's norm" in job.wrongs[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arrival", "poisson"], "needs a finite rate_per_s above 0; set"),
        (["--rate-per-s", "5"], "rate_per_s=5 needs an arrival process"),
        (["--arrival", "poisson", "--rate-per-s", "0"], "needs a finite rate_per_s above 0, not 0; set"),
        (["--arrival", "poisson", "--rate-per-s", "inf"], "needs a finite rate_per_s above 0, not inf; set"),
        (["--output-tokens", "4"], "use library=transformers"),
        (
            ["--step-mode", "cuda_graph", "--max-batch", "2", "--outstanding", "2"],
            "step_mode=cuda_graph needs max_batch=1",
        ),
    ],
)
def test_wrong_arguments_end_with_status_2(flags, message, capsys):
    with pytest.raises(SystemExit) as caught:
        program.parse(Infer, [*NETWORK, *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "error", "why"),
    [
        ([*BERT, "max_position_embeddings=8"], UsageError, "13 are more than the 8 positions of the model"),
        (GEMMA, ValueError, "gemma3 has 12 positions, too few for --sequence-tokens 13"),
    ],
)
def test_a_text_longer_than_the_model_has_positions_is_an_error(flags, error, why):
    with pytest.raises(error, match=why):
        ask(*flags, "--sequence-tokens", "13")


def test_a_unet_of_diffusers_answers_with_the_noise_in_an_image(monkeypatch):
    class UNet2DModel(torch.nn.Conv2d):
        def __init__(self, sample_size, channels):
            super().__init__(channels, channels, 1)
            self.size = sample_size

        def forward(self, images, step):
            assert images.shape[-1] == self.size and 0 <= step < 1000
            return types.SimpleNamespace(sample=super().forward(images))

    monkeypatch.setitem(sys.modules, "diffusers", types.SimpleNamespace(UNet2DModel=UNet2DModel, __version__="1.0"))
    monkeypatch.setattr(infer.program.importlib.metadata, "version", lambda _: "1.0")
    images = ["--library", "diffusers", "--image-px", "8", "--model-args", "channels=3"]
    job = ask(*images, "--model", "UNet2DModel")
    assert (len(job.requests), job.wrongs) == (20, [])
    with pytest.raises(ValueError, match=r"diffusers 1\.0 has no U-Net ResNet"):
        ask(*images, "--model", "ResNet")
