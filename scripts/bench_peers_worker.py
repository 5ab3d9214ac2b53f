"""One measurement of PyTorch's stack on the work of `plumb bench train` or `plumb bench grpo`; prints JSON. Run by bench_peers.

  grpo   a whole GRPO step of TRL: the 0.8M Llama, 32 prompts of 8 tokens, 8 answers of 16 tokens each, generation by transformers, FP32
  train  a training step of transformers and AdamW: the 25.7M Qwen3, 8 sequences of 256 tokens, FP32
"""
import argparse
import json
import tempfile
import time

import torch
import transformers

PROMPTS, SAMPLES, PROMPT, ANSWER = 32, 8, 8, 16
SEQUENCES, TOKENS = 8, 256


def character_tokenizer(folder):
    """Sixteen one-character tokens, the first of which ends and pads."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate("#0123456789,:;+=")}, unk_token="#"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="#", pad_token="#", unk_token="#")


def grpo_seconds(steps):
    import datasets
    import trl

    config = transformers.LlamaConfig(vocab_size=16, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
                                      num_key_value_heads=4, head_dim=32, max_position_embeddings=128, tie_word_embeddings=True,
                                      eos_token_id=0, pad_token_id=0, bos_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    prompts = ["".join(str((i + j) % 10) for j in range(PROMPT)) for i in range(PROMPTS * (steps + 1))]
    ends = []  # a step is timed from end to end: its callback at the beginning comes after its generation

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            ends.append(time.perf_counter())

    def reward(completions, **kwargs):
        return [c.count("1") / ANSWER for c in completions]

    with tempfile.TemporaryDirectory() as out:
        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=reward, processing_class=character_tokenizer(out), callbacks=[Clock()],
            train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
            args=trl.GRPOConfig(output_dir=out, per_device_train_batch_size=PROMPTS * SAMPLES, num_generations=SAMPLES,
                                max_completion_length=ANSWER, generation_kwargs={"min_new_tokens": ANSWER}, max_steps=steps + 1,
                                beta=0.0, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no",
                                logging_strategy="no", disable_tqdm=True))
        trainer.train()
    return [b - a for a, b in zip(ends, ends[1:])], PROMPTS * SAMPLES * ANSWER


def train_seconds(steps):
    config = transformers.Qwen3Config(vocab_size=1024, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
                                      num_key_value_heads=4, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=True)
    model = transformers.Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 1024, (SEQUENCES, TOKENS))
    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        model(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return seconds[1:], SEQUENCES * TOKENS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["grpo", "train"])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    seconds, tokens = {"grpo": grpo_seconds, "train": train_seconds}[arguments.what](arguments.steps)
    print(json.dumps({"seconds": seconds, "tokens": tokens}))


main()
