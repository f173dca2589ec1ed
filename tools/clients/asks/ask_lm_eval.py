"""lm-eval, with a task of its own: those of its catalogue are fetched from the hub."""

import json
import os
from pathlib import Path

from report import FOLDER, MODEL, SCRATCH, V1, asks, main, run

os.environ |= {"OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "HF_HOME": f"{SCRATCH}/hf"}
tasks = Path(SCRATCH) / "tasks"
tasks.mkdir(parents=True, exist_ok=True)
QUESTIONS = [
    ("The sky on a clear day is", ["blue", "a spoon", "seven"], 0),
    ("Two and two make", ["a river", "four", "green"], 1),
    ("Fish live in", ["books", "songs", "water"], 2),
    ("The sun rises in the", ["east", "cup", "door"], 0),
    ("A dog is an", ["hour", "animal", "ocean"], 1),
]
data = tasks / "questions.jsonl"
data.write_text(
    "".join(json.dumps({"q": q, "choices": c, "gold": g}) + "\n" for q, c, g in QUESTIONS)
)
COMMON = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
(tasks / "choice.yaml").write_text(
    f"task: own_choice\noutput_type: multiple_choice\n{COMMON}"
    'doc_to_text: "{{q}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: gold\n'
    "metric_list:\n  - metric: acc\n"
)
(tasks / "perplexity.yaml").write_text(
    f"task: own_perplexity\noutput_type: loglikelihood_rolling\n{COMMON}"
    'doc_to_text: ""\ndoc_to_target: "{{q}}"\n'
    "metric_list:\n  - metric: word_perplexity\n"
)
(tasks / "generate.yaml").write_text(
    f"task: own_generate\noutput_type: generate_until\n{COMMON}"
    'doc_to_text: "{{q}}"\ndoc_to_target: "{{choices[gold]}}"\n'
    'generation_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 16\n  do_sample: false\n'
    "metric_list:\n  - metric: exact_match\n"
)


def evaluate(task: str, path: str, kind: str, *more: str) -> str:
    tokenizer = f"tokenizer_backend=huggingface,tokenizer={FOLDER}"
    arguments = f"model={MODEL},base_url={V1}/{path},{tokenizer},max_retries=1,num_concurrent=2"
    output = run(
        "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", task,
        "--include_path", str(tasks), *more,
    )  # fmt: skip
    assert task in output
    return output


@asks("local-completions: multiple choice")
def _():
    assert "acc" in evaluate("own_choice", "completions", "local-completions")


@asks("local-completions: perplexity")
def _():
    evaluate("own_perplexity", "completions", "local-completions")


@asks("local-completions: generation")
def _():
    evaluate("own_generate", "completions", "local-completions")


@asks("local-chat-completions: generation")
def _():
    evaluate("own_generate", "chat/completions", "local-chat-completions", "--apply_chat_template")


main()
